"""Published models: Hugging Face configs to and from architectures, and the names that people type."""
