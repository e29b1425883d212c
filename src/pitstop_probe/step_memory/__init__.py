"""What one step of a script holds in memory, piece by piece; on only under ``pitstop plan``."""
