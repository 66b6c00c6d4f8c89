"""Starting from a pretrained model: cut it to limits, heal it by distillation from itself, export and measure."""

from chipwise.shrinking.distillation import Healing
from chipwise.shrinking.shrink_model import Shrunk, shrink_model

__all__ = ["Healing", "Shrunk", "shrink_model"]
