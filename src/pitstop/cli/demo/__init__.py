"""The demo: somebody's slow script first, then the engine; what is said and what is done apart."""
