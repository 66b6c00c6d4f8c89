"""Kits: folders of models that a person measures on another machine, and the results that come back."""
