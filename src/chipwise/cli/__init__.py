"""The command line: one file a command; each parses, calls :mod:`chipwise.api`, and prints."""

from chipwise.cli.entry import main

__all__ = ["main"]
