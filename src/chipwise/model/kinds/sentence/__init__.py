"""Classifiers of short texts: sentiment, intents, spam. A table of words, layers that see all of them, and classes."""
