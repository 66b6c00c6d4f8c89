"""Predictions for measured rows: each by the fit that had not seen its device or family, where that is asked."""
