"""Machines: profiles, data sheets and runtimes."""

from chipwise.hardware.detect import Machine, detect
from chipwise.hardware.device import CheckError, Curve, MachineProfile, MemoryCost, PassCost, Tail

__all__ = ["CheckError", "Curve", "Machine", "MachineProfile", "MemoryCost", "PassCost", "Tail", "detect"]
