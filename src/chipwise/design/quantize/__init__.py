"""Makes a given model better for a machine by number formats, each chosen by measured time and measured loss.

ONNX files: a format for each operator (``onnx_file``); graphs live in a child process (``worker``).
GGUF files (``gguf_file``): losses of llama.cpp's formats by matrix from ``windows`` of text (``losses``, ``decoder``),
prices measured here (``mixes``) or predicted for another chip (``chip_prices``), and an exact choice.
"""
