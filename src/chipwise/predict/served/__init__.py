"""Predicts time, price and energy per token of models on a server, with parallelism, batching and scheduling."""
