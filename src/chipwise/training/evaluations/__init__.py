"""Evaluations of text models on multiple-choice tasks, beside their baselines."""
