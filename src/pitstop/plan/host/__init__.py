"""Host memory of a job before it runs: processes tried for seconds, batches and cache counted."""
