"""Training: one step that everyone can read, and the loop around it."""
