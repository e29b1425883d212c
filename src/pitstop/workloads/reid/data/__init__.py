"""ORBench: layouts, index, samples, captions."""
