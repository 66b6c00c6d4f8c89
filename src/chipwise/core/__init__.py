"""What every room needs and what needs no room: units, errors, number formats, files, identity, tables."""
