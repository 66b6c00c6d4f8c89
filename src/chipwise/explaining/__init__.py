"""Why a model is slow on a chip, and what to change: priced advice, never a rule of thumb without a number."""
