"""Vision: a transformer classifies images, scored by accuracy."""
