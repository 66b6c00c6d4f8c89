"""Transcripts: a transformer transcribes speech character by character, scored by its error rate."""
