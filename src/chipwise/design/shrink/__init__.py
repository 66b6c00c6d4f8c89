"""Cuts a pretrained model to limits, heals it by distillation from itself, exports and measures it."""
