"""Person re-identification across RGB, infrared, colour pencil, sketch and text."""
