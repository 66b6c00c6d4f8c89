"""Ranking: a transformer ranks candidates after a history, scored by NDCG@10."""
