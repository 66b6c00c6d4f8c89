"""Foundations without dependencies on other rooms: units, errors, number formats, files, digests, tables."""
