"""Records of training logs: their rows, summaries and comparisons."""
