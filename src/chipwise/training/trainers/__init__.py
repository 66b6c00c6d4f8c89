"""Trainers run training jobs: on this machine's cores, on CUDA devices, on Ray, or as files for other machines."""
