"""Evaluates text models on classification, regression and multiple-choice tasks, next to baselines."""
