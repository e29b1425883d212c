"""Lift, splat and segment: backbone, geometry, heads."""
