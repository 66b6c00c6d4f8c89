"""Served models: time, price and energy per token with parallelism, batching and scheduling."""
