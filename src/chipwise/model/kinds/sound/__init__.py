"""Audio models: CTC speech recognisers that output characters, and pretrained audio encoders."""
