"""One cache for all processes of a host: shared memory, its index, locks and eviction."""
