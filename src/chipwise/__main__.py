"""``python -m chipwise``: the command line."""

from chipwise.cli import main

main()
