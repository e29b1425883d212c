"""Estimates over a run's facts: headroom, combined gains, what was not sampled."""
