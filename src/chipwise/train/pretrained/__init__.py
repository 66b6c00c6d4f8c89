"""Starting from a pretrained model: cut it to limits, heal it by distillation from itself, export and measure."""

from chipwise.train.pretrained.command import Shrunk, start_from
from chipwise.train.pretrained.distil import Healing

__all__ = ["Healing", "Shrunk", "start_from"]
