"""Verdicts on training logs."""
