"""The ``chipwise`` command before anything is imported: Ctrl-C ends it without a traceback from its first moment."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the ``chipwise`` command.

    Exit codes: 0 done, 1 failed, 2 bad input, 3 trainings elsewhere are awaited, 4 a search's winner is not known to
    keep every limit, 130 stopped by Ctrl-C.
    """
    try:
        from chipwise.cli.app import run

        run()
    except KeyboardInterrupt:
        sys.exit(130)
