"""Builds HTML files that need no network: each contains plotly's script and the data of its figures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files

from chipwise.core.extras import optional_imports
from chipwise.core.page.figures import Figure
from chipwise.core.page.markup import safe

_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def document(title: str, body: str, *, figures: Mapping[str, Sequence[Figure]]) -> str:
    """A complete HTML page with the content ``body``. The figure with key ``KEY`` fills the element ``plot-KEY``.

    Plotly is included only if there are figures.

    Raises:
        MissingExtra: plotly, whose script the page includes, is not installed.
    """
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f'<title>{safe(title)}</title>\n<link rel="icon" href="data:,">\n'
        f"<style>\n{_asset('page.css')}</style>\n</head>\n"
        f"<body>\n<main>\n{body}</main>\n"
        f'<script type="application/json" id="figures">{_json(figures)}</script>\n'
        f"<script>{_plotly() if figures else ''}</script>\n<script>\n{_asset('page.js')}</script>\n</body>\n</html>\n"
    )


def _plotly() -> str:
    with optional_imports():
        from plotly.offline import get_plotlyjs
    return str(get_plotlyjs()).replace("</script", "<\\/script")


def _asset(name: str) -> str:
    return files("chipwise.core.page").joinpath(name).read_text(encoding="utf-8")


def _json(value: object) -> str:
    """``value`` as JSON that is safe inside a script element."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
