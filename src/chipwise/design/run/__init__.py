"""A run's specification, folder, budget and trials: the files that every search writes and resumes from."""
