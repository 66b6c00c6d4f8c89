"""Explains why a model is slow on a chip and what to change; every piece of advice is priced."""
