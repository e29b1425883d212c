"""A generated nuScenes set."""
