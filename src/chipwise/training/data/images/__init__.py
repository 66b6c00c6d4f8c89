"""Images for training: sources, splits into parts, and data sets of labelled images."""
