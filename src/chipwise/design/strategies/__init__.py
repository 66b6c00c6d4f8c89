"""Search algorithms that ask and tell, the Pareto front, the study, and the model of quality; no torch."""
