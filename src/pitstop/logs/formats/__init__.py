"""One reader a format family."""
