"""What a run saves and loads: checkpoints, manifests, random generators, weights."""
