"""What a run will need, as planned before it runs."""
