"""Pages of the marketplace, by subject."""
