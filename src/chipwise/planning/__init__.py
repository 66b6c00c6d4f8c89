"""Which chips, how many, how arranged, at what price: served models planned for a load and its limits."""
