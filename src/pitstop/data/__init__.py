"""From files to batches: which samples, in which order, read by whom."""
