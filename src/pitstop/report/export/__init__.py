"""A judged run in the formats of other tools: traces, experiment trackers, notebooks."""
