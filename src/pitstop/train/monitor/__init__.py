"""What is watched while a run goes on: deferred values, memory, communication, the loader."""
