"""Foundations that do not depend on models or chips: units, number formats, files, tables, worker processes.

A helper belongs here if at least two floors use it and it does not depend on models, chips or searches.
"""
