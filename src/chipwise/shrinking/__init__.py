"""Starting from a pretrained model: cut it to limits, heal it by distillation from itself, export and measure."""

from chipwise.shrinking.command import Shrunk, start_from
from chipwise.shrinking.distil import Healing

__all__ = ["Healing", "Shrunk", "start_from"]
