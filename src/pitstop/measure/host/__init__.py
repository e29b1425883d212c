"""Readings of a running host: memory, load, processes, GPUs, limits."""
