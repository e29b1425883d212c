"""Verdicts: rules that judge recorded facts."""
