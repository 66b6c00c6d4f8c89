"""The stem of pretrained audio encoders: convolutions, their norms, and position embeddings."""
