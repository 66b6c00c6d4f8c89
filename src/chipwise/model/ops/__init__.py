"""Operators: FLOPs and bytes of each kernel in closed form; sizes may be arrays."""
