"""Folders for files that are kept between runs."""

from __future__ import annotations

import os
from pathlib import Path


def data_folder() -> Path:
    """Absolute path of the folder ``CHIPWISE_HOME``, or ``chipwise`` in the user's data folder."""
    home = os.environ.get("CHIPWISE_HOME")
    if home:
        return Path(home).absolute()
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "chipwise"


def cache_folder() -> Path:
    """Absolute path of the folder ``CHIPWISE_CACHE``, or ``chipwise`` in the user's cache folder.

    It contains only files that can be fetched or made again.
    """
    cache = os.environ.get("CHIPWISE_CACHE")
    if cache:
        return Path(cache).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "chipwise"
