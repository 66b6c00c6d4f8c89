"""Speech: a transformer tells spoken words apart (keyword spotting) and is judged by its accuracy."""
