"""Replays a served model's scheduler under load: requests arrive, share steps, wait, are preempted, and end."""
