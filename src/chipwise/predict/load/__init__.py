"""Simulates a serving engine under load by replaying its scheduler: requests arrive, wait, share steps, and end."""
