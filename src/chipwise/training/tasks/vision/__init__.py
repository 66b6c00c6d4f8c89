"""Vision: a transformer tells the classes of images apart and is judged by its accuracy."""
