"""Laws fitted to whole runs, for cases without kernel timings: phone NPUs, diffusion models, image models, power."""
