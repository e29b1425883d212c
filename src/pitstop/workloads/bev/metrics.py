"""Intersection over union of each class, from counts that are added up batch by batch.

A cell may have several classes, so each class is judged by itself, by a threshold on its own
probability; there is no largest one to choose. What is counted over the whole set: cells that are
rightly found, wrongly found, and missed. Two protocols, named in every number:

    iou_at_050/CLASS     at the threshold 0.5; miou_at_050 is the mean over classes
    iou_best/CLASS       at the best of the thresholds 0.35, 0.40 ... 0.65, chosen for each class on
                         the evaluated set itself, as BEVFusion's figures are; miou_best is the
                         mean, map_miou_best the mean over what is on the map

    miou_pon             at 0.5, over the classes that occur, as the PON benchmark has it
    miou_bevfusion       at the best threshold, over all classes; one that does not occur counts as
                         0, as BEVFusion has it

A cell is found where the probability lies above the threshold.
The second is never lower; figures of the two are not comparable. Only cells that count as seen are
counted. A class that neither occurs nor is found has no number and is left out of the mean.
"""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from pitstop.workloads.bev.data.batch import BevBatch

THRESHOLDS: Final = (0.35, 0.40, 0.45, 0.50, 0.55, 0.60, 0.65)
FIXED: Final = THRESHOLDS.index(0.50)
ON_MAP: Final = frozenset(
    {"drivable_area", "ped_crossing", "walkway", "stop_line", "carpark", "carpark_area", "divider"}
)
_COUNTS: Final = 3


def metric_names(classes: Sequence[str]) -> list[str]:
    """Name every number there may be."""
    names = [f"iou_{protocol}/{name}" for protocol in ("at_050", "best") for name in classes]
    on_map = ["map_miou_best"] if ON_MAP.intersection(classes) else []
    return ["miou_at_050", "miou_best", "miou_pon", "miou_bevfusion", *on_map, *names]


class CellOverlap:
    """Counts of cells by class and threshold; memory does not grow with the set."""

    def __init__(self, classes: Sequence[str]) -> None:
        self._classes = tuple(classes)
        self._counts: Tensor | None = None

    def update(self, output: Tensor, batch: BevBatch) -> None:
        """Take in (B, K, h, w) logits; nothing is read from the device."""
        if self._counts is None:
            shape = (len(THRESHOLDS), len(self._classes), _COUNTS)
            self._counts = torch.zeros(shape, dtype=torch.float64, device=output.device)
        seen = batch.mask[:, None].bool()
        wanted = batch.targets.bool() & seen
        chance = output.float().sigmoid()
        for place, threshold in enumerate(THRESHOLDS):
            found = (chance > threshold) & seen
            both = found & wanted
            counts = [cells.sum(dim=(0, 2, 3)) for cells in (both, found, wanted)]
            self._counts[place] += torch.stack(counts, dim=-1)

    def state(self) -> Tensor:
        """Give all counts as one vector; vectors of ranks add up."""
        if self._counts is None:
            size = len(THRESHOLDS) * len(self._classes) * _COUNTS
            return torch.zeros(size, dtype=torch.float64)
        return self._counts.flatten()

    def result(self, state: Tensor) -> dict[str, float]:
        """Turn counts into overlaps; nothing where nothing was counted."""
        counts = state.cpu().view(len(THRESHOLDS), len(self._classes), _COUNTS)
        both, found, wanted = counts.unbind(-1)
        union = found + wanted - both
        overlaps = torch.where(union > 0, both / union.clamp_min(1), torch.nan)
        best = overlaps.nan_to_num(-1).amax(dim=0)
        protocols = {
            "at_050": dict(zip(self._classes, overlaps[FIXED].tolist(), strict=True)),
            "best": dict(zip(self._classes, best.tolist(), strict=True)),
        }
        numbers: dict[str, float] = {}
        for protocol, by_class in protocols.items():
            known = {name: value for name, value in by_class.items() if value >= 0}
            if known:
                numbers[f"miou_{protocol}"] = sum(known.values()) / len(known)
            numbers |= {f"iou_{protocol}/{name}": value for name, value in known.items()}
        occurs = wanted[FIXED] > 0
        if occurs.any():
            numbers["miou_pon"] = float(overlaps[FIXED][occurs].mean())
        if (union > 0).any():
            numbers["miou_bevfusion"] = float(best.clamp_min(0).mean())
        on_map = [
            value for name, value in protocols["best"].items() if value >= 0 and name in ON_MAP
        ]
        if on_map:
            numbers["map_miou_best"] = sum(on_map) / len(on_map)
        return numbers
