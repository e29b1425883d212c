"""What `pitstop verify` finds: checklists of runs, and two ways to train held side by side."""
