"""Search spaces: candidates as rows of integers, and the designs that they encode."""
