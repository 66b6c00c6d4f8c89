"""Where candidates are trained: on this machine's cores, on CUDA devices, on a Ray cluster, or as jobs run elsewhere."""
