"""Text, tokenizers and real trainings: where a candidate's quality comes from."""
