"""Pages of reliability."""
