"""Foundations that do not depend on models or chips: units, number formats, files, tables, worker processes.

A helper belongs here if at least two of chipwise's top-level packages use it and it does not depend on models, chips or
searches.
"""
