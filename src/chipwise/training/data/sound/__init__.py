"""Speech for training: recordings, synthetic speech, noise, and the log-mel front end."""
