"""Writes models as ONNX, GGUF and Hugging Face files, reads such files, and compares their outputs with torch."""
