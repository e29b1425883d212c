"""Steps of a training: their borders, their parts, their samples."""
