"""Records of machines and of a running job's memory and load."""
