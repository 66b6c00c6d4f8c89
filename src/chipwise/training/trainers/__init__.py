"""Trainers of candidates: this machine's cores, CUDA devices, a Ray cluster, or jobs run elsewhere."""
