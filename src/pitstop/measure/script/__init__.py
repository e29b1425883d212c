"""Measuring somebody's training: the launcher, attaching from code, callbacks, FLOPs."""
