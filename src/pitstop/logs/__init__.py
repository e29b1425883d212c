"""Readers of foreign training logs: from text to the same record that a measured run leaves."""
