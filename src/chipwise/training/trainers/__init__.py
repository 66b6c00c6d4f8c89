"""Trainers run the trainings of candidates: on this machine's cores, on CUDA devices, on Ray, or as jobs elsewhere."""
