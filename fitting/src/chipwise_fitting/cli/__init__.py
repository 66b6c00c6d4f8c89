"""The commands that this package adds to ``chipwise``: one module each, loaded by ``chipwise.cli.fitting``."""
