"""What a run will need, before it runs: device memory, host memory, time; each with its error."""
