"""What a machine is and how fast its parts are, with advice for loader and cache."""
