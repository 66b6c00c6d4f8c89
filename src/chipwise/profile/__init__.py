"""The same questions that ``cost`` answers, asked of a real machine."""
