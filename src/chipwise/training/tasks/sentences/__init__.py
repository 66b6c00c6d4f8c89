"""Sentences: a transformer classifies short texts (intents, sentiment, spam), scored by accuracy."""
