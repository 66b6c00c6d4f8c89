"""The command line: one file a command, which parses, calls :mod:`chipwise.api` and prints.

Nothing is computed here. What two commands share (options, tables, progress) has a file of its own; what a script
could also want belongs in :mod:`chipwise.api`.
"""

from chipwise.cli.entry import main

__all__ = ["main"]
