"""Prunes a pretrained model until it meets limits, heals it by distillation, exports it and measures it."""
