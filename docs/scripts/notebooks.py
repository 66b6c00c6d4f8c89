"""Runs the notebooks of docs/notebooks from top to bottom; a cell that raises fails."""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


def main() -> int:
    """Runs each notebook in a kernel of this environment."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
        print(f"{path.name}: ran")
    return 0


if __name__ == "__main__":
    sys.exit(main())
