# ruff: noqa: C408 - written as users write theirs
"""A base of guide_bev.py."""

log_level = "INFO"
lr_config = dict(policy="step", step=[5, 9])
