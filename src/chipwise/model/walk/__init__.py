"""From an architecture to its weights and operators, and which part of a larger model's weights forms it."""
