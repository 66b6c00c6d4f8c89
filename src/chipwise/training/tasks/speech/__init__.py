"""Speech: a transformer classifies spoken words (keyword spotting) and is judged by its accuracy."""
