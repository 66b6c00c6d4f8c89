"""What a machine offers."""

from chipwise.hardware.detect import Machine, detect

__all__ = ["Machine", "detect"]
