"""Hugging Face configs to and from ArchSpec; names of known models, and the formats that their weights ship in."""

from chipwise.spec.hf.quantised import default_weights
from chipwise.spec.hf.read import OWN_TYPE, Reading, from_config, read_config, read_model, resolve
from chipwise.spec.hf.write import family_of, to_config

__all__ = [
    "OWN_TYPE",
    "Reading",
    "default_weights",
    "family_of",
    "from_config",
    "read_config",
    "read_model",
    "resolve",
    "to_config",
]
