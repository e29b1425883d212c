"""Text for people: only this package and the command line produce any."""
