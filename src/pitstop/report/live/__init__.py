"""A run while it goes on, on a terminal and as a page."""
