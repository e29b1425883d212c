"""One step of a run on a GPU that is not there: shapes alone, no numbers."""
