"""From a sound to positions, as published models do it: convolutions, their norms, and what tells positions."""
