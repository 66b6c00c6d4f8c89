"""Laws of whole runs where kernels were not timed: phones, diffusion models, image models, watts."""
