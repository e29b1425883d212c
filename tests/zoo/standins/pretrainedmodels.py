"""Named by a script that does not use it as it is run here."""
