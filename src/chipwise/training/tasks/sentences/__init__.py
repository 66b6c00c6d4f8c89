"""Sentences: a transformer tells short texts apart (intents, sentiment, spam), scored by accuracy."""
