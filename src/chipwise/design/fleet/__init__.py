"""Plans fleets: which chips, how many, in which arrangement and at what price, for a load and its limits."""
