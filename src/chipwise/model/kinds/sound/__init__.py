"""Audio models: speech recognisers that output characters (CTC), and pretrained audio encoders."""
