"""Which samples make up which batch."""
