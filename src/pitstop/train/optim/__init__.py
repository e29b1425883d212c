"""From gradients to new weights: precision, clipping, optimizers, schedules, averaging."""
