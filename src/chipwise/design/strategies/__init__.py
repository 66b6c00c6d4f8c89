"""Search algorithms with an ask/tell interface, Pareto fronts, the study, and the surrogate of quality; no torch."""
