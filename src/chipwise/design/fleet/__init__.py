"""Plans fleets that serve a load within limits: which chips, how many, in which arrangement and at what price."""
