"""Foundations that do not depend on models or chips: units, number formats, files, tables, worker processes.

A helper belongs here when at least two floors use it and it mentions no model, chip or search.
"""
