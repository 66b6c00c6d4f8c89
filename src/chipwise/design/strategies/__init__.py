"""Search algorithms with an ask/tell interface, Pareto fronts, studies, and the quality surrogate; without PyTorch."""
