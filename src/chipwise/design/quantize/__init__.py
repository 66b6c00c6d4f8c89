"""Makes a given model better for a machine by number formats, each chosen by measured time and measured loss.

ONNX files: a format for each operator (``onnx_file``); graphs live in a child process (``worker``).
GGUF files (``gguf_file``, with the steps of a run in ``gguf_run``): losses of llama.cpp's formats by matrix from
``windows`` of text (``losses``, ``decoder``), prices measured here (``mixes``) or predicted for another chip
(``chip_prices``), and an exact choice. Answers that took time are kept (``answers``).
"""

from typing import TYPE_CHECKING

from chipwise.core.extras import require
from chipwise.core.lazy import on_first_use

if TYPE_CHECKING:
    from chipwise.design.quantize.gguf_file import quantize_gguf
    from chipwise.design.quantize.windows import texts_of

__all__ = ["quantize_gguf", "texts_of"]


def require_packages() -> None:
    """Checks that all packages of :func:`quantize_gguf` are installed.

    Raises:
        MissingExtra: One is not.
    """
    for module in ("torch", "tokenizers", "safetensors", "gguf", "scipy", "plotly"):
        require(module)


__getattr__, __dir__ = on_first_use(__name__, __file__)  # torch is loaded only for models that need it
