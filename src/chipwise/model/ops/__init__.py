"""Operators, each with formulas for its FLOPs and bytes. Sizes may be numbers or arrays."""
