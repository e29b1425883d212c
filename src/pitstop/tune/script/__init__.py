"""Somebody's training script made faster from outside, and the lines that would do the same."""
