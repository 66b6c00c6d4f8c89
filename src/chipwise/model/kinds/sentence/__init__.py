"""Classifiers of short texts (sentiment, intent, spam): a word table, bidirectional layers, and classes."""
