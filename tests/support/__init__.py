"""Models and machines that several tests share."""
