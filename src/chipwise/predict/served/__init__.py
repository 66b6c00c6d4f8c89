"""Serving: time, price and energy per token of models that are spread over devices, batched and scheduled."""
