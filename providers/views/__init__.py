"""Pages of providers, by subject."""
