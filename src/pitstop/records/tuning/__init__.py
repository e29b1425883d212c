"""Studies of settings."""
