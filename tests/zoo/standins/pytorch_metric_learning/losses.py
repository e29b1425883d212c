"""Nothing is used of it."""
