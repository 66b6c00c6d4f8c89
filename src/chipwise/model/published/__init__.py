"""Published models: converts between Hugging Face configs and architectures; finds models by names that users type."""
