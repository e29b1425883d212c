"""Ranks on the page: a few side by side, many as a heat map."""
