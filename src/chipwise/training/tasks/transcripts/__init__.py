"""Transcripts: a transformer transcribes speech character by character, scored by character error rate."""
