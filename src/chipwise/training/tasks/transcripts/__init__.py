"""Transcripts: a transformer writes down what is said, character by character, and is judged by its error rate."""
