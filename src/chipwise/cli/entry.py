"""Entry point of ``chipwise``. It imports nothing first, so that Ctrl-C during start-up prints no traceback."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the ``chipwise`` command.

    Exit codes: 0 done, 1 failed, 2 bad input, 3 the search waits for trainings elsewhere, 4 the winner of a search is
    not known to keep every limit, 130 stopped by Ctrl-C.
    """
    try:
        from chipwise.cli.app import run

        run()
    except KeyboardInterrupt:
        sys.exit(130)
