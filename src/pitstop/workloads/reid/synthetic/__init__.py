"""A generated dataset of people."""
