"""RMSNorm and LayerNorm, with the residual addition."""
