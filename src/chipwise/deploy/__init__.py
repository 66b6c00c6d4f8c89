"""ArchSpec (and weights) to something that runs: torch, ONNX, a Hugging Face folder."""
