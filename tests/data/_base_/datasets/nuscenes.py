# ruff: noqa: C408 - written as users write theirs
"""A base of guide_bev.py."""

data = dict(samples_per_gpu=2, workers_per_gpu=1, test=dict(type="NuscenesDataset"))
