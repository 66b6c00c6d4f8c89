"""Serving: models spread over devices, batched and scheduled; what a token takes, costs and draws."""
