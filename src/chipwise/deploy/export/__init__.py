"""Writes models as ONNX, GGUF and Hugging Face files, reads them back, and checks that they compute the same."""
