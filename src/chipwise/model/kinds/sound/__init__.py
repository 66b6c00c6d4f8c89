"""Speech recognisers that write characters, word spotters, and published encoders of sound."""
