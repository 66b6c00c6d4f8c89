"""Evaluates text models on classification, regression and multiple-choice tasks, and compares them with a baseline."""
