"""Overlaps against a count of cells, one by one."""

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pitstop.workloads.bev.data.batch import BevBatch
from pitstop.workloads.bev.metrics import ON_MAP, THRESHOLDS, CellOverlap, metric_names

torch.set_num_threads(1)
NAMES = ("drivable_area", "walkway", "vehicle")


def batch_of(targets: Tensor, mask: Tensor) -> BevBatch:
    empty = torch.zeros(len(targets))
    return BevBatch(
        images=torch.zeros(len(targets), 1, 3, 1, 1, dtype=torch.uint8),
        intrinsics=empty,
        cam_to_ego=empty,
        image_transform=empty,
        bev_transform=empty,
        calibration=empty,
        targets=targets.byte(),
        mask=mask.byte(),
    )


def logit(chance: float) -> float:
    return math.log(chance / (1 - chance))


def overlaps(
    chances: Tensor, targets: Tensor, mask: Tensor, threshold: float
) -> dict[str, float | None]:
    """Count sets of cells."""
    scores: dict[str, float | None] = {}
    for k, name in enumerate(NAMES):
        found, there = set(), set()
        for b, i, j in mask.nonzero().tolist():
            if chances[b, k, i, j] > threshold:
                found.add((b, i, j))
            if targets[b, k, i, j]:
                there.add((b, i, j))
        scores[name] = len(found & there) / len(found | there) if found | there else None
    return scores


def result_of(metrics: CellOverlap) -> dict[str, float]:
    return metrics.result(metrics.state())


def test_means_of_the_two_communities_differ_in_classes_that_do_not_occur() -> None:
    """One class is half right, one is found where it never is, one is nowhere."""
    targets = torch.zeros(1, 3, 1, 4, dtype=torch.bool)
    targets[0, 0, 0, :2] = True
    chance = torch.full((1, 3, 1, 4), 0.1)
    chance[0, 0, 0, 1:3] = 0.6
    chance[0, 1, 0, 0] = 0.6
    metrics = CellOverlap(NAMES)
    metrics.update(chance.logit(), batch_of(targets, torch.ones(1, 1, 4)))
    scores = result_of(metrics)
    third = 1 / 3
    assert scores["miou_pon"] == pytest.approx(third)
    assert scores["miou_at_050"] == pytest.approx(third / 2)
    assert scores["miou_bevfusion"] == pytest.approx(third / 3)
    assert scores["miou_best"] == pytest.approx(third / 2)


# Chances on both sides of every threshold, none on one: where sigmoid and threshold are rounded
# differently they would not tell the same.
CHANCES = st.sampled_from([0.1, 0.37, 0.42, 0.47, 0.52, 0.57, 0.62, 0.9])


@given(
    chances=st.lists(CHANCES, min_size=36, max_size=36),
    targets=st.lists(st.booleans(), min_size=36, max_size=36),
    mask=st.lists(st.booleans(), min_size=12, max_size=12),
)
def test_overlaps_are_those_of_counted_cells(
    chances: Sequence[float], targets: Sequence[bool], mask: Sequence[bool]
) -> None:
    wanted = torch.tensor(targets).view(2, 3, 2, 3)
    seen = torch.tensor(mask).view(2, 2, 3)
    chance = torch.tensor(chances).view(2, 3, 2, 3)
    metrics = CellOverlap(NAMES)
    for one in range(2):
        part = slice(one, one + 1)
        metrics.update(chance[part].logit(), batch_of(wanted[part], seen[part]))
    scores = result_of(metrics)

    by_threshold = [overlaps(chance, wanted, seen, threshold) for threshold in THRESHOLDS]
    for name in NAMES:
        at_half = by_threshold[3][name]
        known = [value for row in by_threshold if (value := row[name]) is not None]
        assert scores.get(f"iou_at_050/{name}") == pytest.approx(at_half)
        assert scores.get(f"iou_best/{name}") == pytest.approx(max(known) if known else None)
    for total, prefix in (("miou_at_050", "iou_at_050/"), ("miou_best", "iou_best/")):
        parts = [value for name, value in scores.items() if name.startswith(prefix)]
        assert scores.get(total) == pytest.approx(sum(parts) / len(parts) if parts else None)
    on_map = [
        scores[key] for key in ("iou_best/drivable_area", "iou_best/walkway") if key in scores
    ]
    expected = sum(on_map) / len(on_map) if on_map else None
    assert scores.get("map_miou_best") == pytest.approx(expected)
    assert set(scores) <= set(metric_names(NAMES))


def test_a_chance_on_the_threshold_is_not_found() -> None:
    metrics = CellOverlap(("vehicle",))
    targets, mask = torch.ones(1, 1, 1, 2), torch.ones(1, 1, 2)
    metrics.update(torch.tensor([0.0, 1e-3]).view(1, 1, 1, 2), batch_of(targets, mask))
    assert result_of(metrics)["iou_at_050/vehicle"] == 0.5


def test_a_class_that_neither_occurs_nor_is_found_has_no_number() -> None:
    metrics = CellOverlap(NAMES)
    logits = torch.full((1, 3, 2, 2), -5.0)
    logits[:, 0] = 5
    targets = torch.zeros(1, 3, 2, 2)
    targets[:, 0, 0] = 1
    metrics.update(logits, batch_of(targets, torch.ones(1, 2, 2)))
    scores = result_of(metrics)
    assert scores["iou_at_050/drivable_area"] == 0.5
    assert "iou_at_050/walkway" not in scores
    assert scores["miou_at_050"] == 0.5


def test_a_class_that_is_found_and_not_there_is_zero() -> None:
    metrics = CellOverlap(("vehicle",))
    metrics.update(torch.ones(1, 1, 2, 2), batch_of(torch.zeros(1, 1, 2, 2), torch.ones(1, 2, 2)))
    assert result_of(metrics)["iou_best/vehicle"] == 0


def test_unseen_cells_count_for_nothing() -> None:
    metrics = CellOverlap(("vehicle",))
    targets = torch.tensor([1, 1, 0, 0]).view(1, 1, 1, 4)
    logits = torch.tensor([5.0, -5, -5, 5]).view(1, 1, 1, 4)
    metrics.update(logits, batch_of(targets, torch.tensor([1, 0, 1, 0]).view(1, 1, 4)))
    assert result_of(metrics)["iou_at_050/vehicle"] == 1


def test_several_classes_of_a_cell_are_all_found() -> None:
    metrics = CellOverlap(NAMES)
    targets = torch.ones(1, 3, 1, 1)
    chances = torch.tensor([logit(0.9), logit(0.7), logit(0.6)]).view(1, 3, 1, 1)
    metrics.update(chances, batch_of(targets, torch.ones(1, 1, 1)))
    assert result_of(metrics)["miou_at_050"] == 1


def test_nothing_gathered_gives_no_number() -> None:
    assert result_of(CellOverlap(NAMES)) == {}


def test_numbers_of_the_map_are_named_only_where_there_is_one() -> None:
    assert "map_miou_best" not in metric_names(("vehicle",))
    assert "map_miou_best" in metric_names(NAMES)


def test_what_is_on_the_map_is_what_targets_draw_from_it() -> None:
    from pitstop.workloads.bev.data.pon import PON_CLASSES
    from pitstop.workloads.bev.data.targets import MAP_CLASSES

    assert set(MAP_CLASSES) <= ON_MAP
    assert ON_MAP & set(PON_CLASSES) == set(PON_CLASSES[:4])
