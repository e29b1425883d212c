"""Batches on time: worker settings, what workers do, how batches travel, tuning."""
