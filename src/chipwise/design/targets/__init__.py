"""Targets: where a model will be served, what can be predicted there, and what can be measured."""
