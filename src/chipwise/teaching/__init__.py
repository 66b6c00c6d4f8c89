"""Teaching: a machine that no data sheet describes well, learnt from a table of measured models."""
