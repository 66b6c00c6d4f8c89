"""Cuts a pretrained model down to limits, heals it by distillation from the original, exports and measures it."""
