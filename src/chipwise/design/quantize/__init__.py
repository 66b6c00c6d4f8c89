"""Makes a model smaller or faster on a machine by storing its weights in other number formats.

Formats are chosen by measured time and loss. In ONNX files, each operator gets a format (``onnx_file``), and graphs run
in a child process (``worker``). In GGUF files, each matrix gets one of llama.cpp's formats (``gguf_file``; the steps of
a run are in ``gguf_run``). The loss of each format in each matrix is computed on ``windows`` of text (``losses``,
``decoder``). The time of each format is measured on this machine (``mixes``) or predicted for another chip
(``chip_prices``). Then the best mix of formats is chosen exactly. Results that take long to compute are stored
(``answers``).
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
        MissingExtra: A package is not installed.
    """
    for module in ("torch", "tokenizers", "safetensors", "gguf", "scipy", "plotly"):
        require(module)


__getattr__, __dir__ = on_first_use(__name__, __file__)  # torch is loaded only for models that need it
