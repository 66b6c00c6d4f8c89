"""Vision: a transformer classifies images and is judged by its accuracy."""
