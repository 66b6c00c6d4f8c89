"""Operators: FLOPs and bytes of each kernel, counted in closed form; sizes may be arrays."""
