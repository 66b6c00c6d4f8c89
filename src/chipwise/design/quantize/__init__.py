"""Makes a given model faster on this machine by number formats, each chosen by measured time and measured loss.

ONNX files: a format for each operator (``onnx_file``); graphs live in a child process (``worker``).
GGUF files: losses of llama.cpp's formats by matrix (``losses``, ``decoder``), prices and exact choice (``mixes``).
"""
