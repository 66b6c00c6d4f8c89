"""Where candidates are trained: this machine's cores, CUDA devices, a Ray cluster, or jobs that are run elsewhere."""
