"""RMSNorm and LayerNorm, including the residual addition before them."""
