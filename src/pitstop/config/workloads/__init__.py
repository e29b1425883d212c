"""The settings of each workload, by `model.kind`."""
