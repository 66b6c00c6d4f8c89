"""Speech to learn: recordings, synthetic speech, noise, and the log-mel front end."""
