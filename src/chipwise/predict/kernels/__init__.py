"""How long kernels take on devices: one file a kind of operator, physics first, a fitted residual second."""
