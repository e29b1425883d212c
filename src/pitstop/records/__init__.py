"""Facts: frozen, torch-free, versioned; the types that every other package uses."""
