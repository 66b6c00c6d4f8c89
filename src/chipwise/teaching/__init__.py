"""Teaching: learns a machine, which no data sheet describes well, from a table of measured models."""
