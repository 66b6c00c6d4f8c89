"""wllama, llama.cpp in WebAssembly, in a browser, for GGUF files. See ``web/`` for the page and what runs in it.

Each time is the duration of one call of wllama's ``decode``; the choice of the next token is excluded, because wllama
sorts the vocabulary for it. Outputs are logarithms of wllama's probabilities, which are the logits minus a constant.
The cache is in FP32 as in ``llama_cpp.py``, unless ``options={"cache": "f16"}`` selects llama.cpp's default.
"""

from __future__ import annotations

from chipwise.core.extras import require
from chipwise.deploy.runtimes.web.engines import LLAMA_WEB
from chipwise.deploy.runtimes.web.starting import InPage

require("gguf")  # reads the file's metadata, so this runtime is missing without it


class Wllama(InPage):
    """llama.cpp in a headless Chromium. See :class:`chipwise.deploy.runtimes.Runtime`."""

    name, engine = LLAMA_WEB.name, LLAMA_WEB
