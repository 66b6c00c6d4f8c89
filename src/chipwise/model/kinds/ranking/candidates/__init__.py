"""Item embeddings, attention over a request, and scores of candidates."""
