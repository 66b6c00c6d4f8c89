"""A run's specification, folder, budget and trials: what every search writes and resumes from."""
