"""Does a change harm the training: bit by bit, by numbers, by its metric, by a checklist."""
