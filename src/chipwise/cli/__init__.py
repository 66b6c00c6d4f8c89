"""The command line: one file per command, which parses arguments, calls :mod:`chipwise.api` and prints.

Nothing is computed here. Code that several commands share (options, tables, progress) has separate files; functions
that scripts could use belong in :mod:`chipwise.api`.
"""

from chipwise.cli.entry import main

__all__ = ["main"]
