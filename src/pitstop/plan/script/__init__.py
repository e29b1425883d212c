"""A plan of somebody's script, from what its first steps held in memory."""
