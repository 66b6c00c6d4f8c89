"""Speech: a transformer classifies spoken words (keyword spotting), scored by accuracy."""
