"""Items as positions, attention of a request's positions, and the scores of candidates."""
