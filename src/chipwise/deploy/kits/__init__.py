"""Kits: folders that a person runs on another machine, and the results that come back."""
