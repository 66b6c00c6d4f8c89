"""Replays the scheduler of a serving engine under load: requests arrive, share steps, wait, are preempted, and end."""
