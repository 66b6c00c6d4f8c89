"""Laws fitted to whole runs, for models and chips whose kernels were not timed: phones, diffusion and image models."""
