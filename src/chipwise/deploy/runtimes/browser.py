"""ONNX Runtime Web (WebAssembly with SIMD, on one or more threads) in a browser.

It runs the same files as ONNX Runtime. See ``web/`` for the page and what runs in it.
"""

from __future__ import annotations

from chipwise.core.extras import require
from chipwise.deploy.runtimes.web.engines import ORT_WEB
from chipwise.deploy.runtimes.web.starting import InPage

require("onnx")  # reads the file's metadata, so this runtime is missing without it


class Browser(InPage):
    """ONNX Runtime Web in a headless Chromium. See :class:`chipwise.deploy.runtimes.Runtime`."""

    name, engine = ORT_WEB.name, ORT_WEB
