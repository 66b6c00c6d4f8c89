"""Images to learn: their sources, their parts, and labelled images as a data set."""
