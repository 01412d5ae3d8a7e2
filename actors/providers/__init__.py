"""The model adapters, one module a provider."""
