"""Format: the only rooms that talk to people are this and the command line."""
