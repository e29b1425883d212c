"""Settings of networks that are as small as they can be."""

from typing import Any

TINY_VRT: dict[str, Any] = {
    "kind": "vrt",
    "depths": [1] * 8,
    "embed_dims": [8] * 8,
    "heads": 2,
    "window": [2, 4, 4],
    "indep_reconsts": [],
    "deformable_groups": 2,
}
TINY_VRT_SPIKE: dict[str, Any] = {
    **TINY_VRT,
    "kind": "vrt_spike",
    "spike": {"channels": 8, "heads": 2},
    "fusion": {"heads": 2},
}
TINY_SPIKES: dict[str, Any] = {"spike_height": 16, "spike_width": 24, "voxel_bins": 4}
"""Of the files that such a network with spikes is shown."""
