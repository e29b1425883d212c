"""Facts: frozen, torch-free, versioned; the vocabulary every other room speaks."""
