"""Ranking: a transformer ranks candidates after a history and is judged by NDCG@10."""
