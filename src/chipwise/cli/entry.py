"""Entry point of ``chipwise``. The package is imported only inside :func:`main`, so Ctrl-C during start-up prints no
traceback.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the ``chipwise`` command.

    Exit codes: 0 done, 1 failed, 2 bad input, 3 the search waits for training runs on other machines, 4 the winner of a
    search is not known to meet every limit, 130 stopped by Ctrl-C.
    """
    try:
        from chipwise.cli.app import run

        run()
    except KeyboardInterrupt:
        sys.exit(130)
