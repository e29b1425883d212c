"""Stacks of the training thread: whose lines are on them, and what those lines are for."""
