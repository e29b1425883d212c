"""Scores of the public sets against a loop over queries that sorts and counts in plain Python."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pitstop.config.load import config_from
from pitstop.config.workloads.reid import ReidData
from pitstop.errors import DataError
from pitstop.train.evaluation.quality import evaluate
from pitstop.train.optim.precision import Precision
from pitstop.train.ranks import Ranks
from pitstop.train.task import Submission
from pitstop.workloads.reid.data.dataset import load_people
from pitstop.workloads.reid.data.queries import EvalSet, eval_set
from pitstop.workloads.reid.public_protocol import evaluate_public, person_ranks
from pitstop.workloads.reid.reranking import Reranking
from pitstop.workloads.reid.task import build_reid
from tests.unit.workloads.reid.public_files import WRITERS, write_market, write_sysu

torch.set_num_threads(1)

WIDTH = 4
CPU = torch.device("cpu")


def fuse(tokens: Tensor, present: Tensor) -> Tensor:
    del present
    return tokens.sum(1)


def asked_of(root: Path) -> EvalSet:
    data = ReidData(root=root, image_size=(16, 8), holdout=0.0)
    return eval_set(load_people(data), data, text_len=8)


def tokens_of(found: EvalSet, *, seed: int, ties: bool) -> Tensor:
    draw = np.random.default_rng(seed)
    numbers = draw.normal(size=(len(found.images), WIDTH))
    if ties:
        # Corners of a cube in four dimensions: cosines are exact, and many are equal.
        numbers = np.sign(numbers)
    return torch.from_numpy(numbers)


def slow_scores(
    found: EvalSet, tokens: Tensor, queries: Sequence[int], gallery: Sequence[int]
) -> dict[str, float]:
    """One query after the other: sort, leave out, count."""
    images = found.images
    is_sysu = found.searches[0].by_person
    precisions, penalties, places = [], [], []
    unit = [[x / sum(y * y for y in row) ** 0.5 for x in row] for row in tokens.tolist()]
    for query in queries:
        alike = {
            item: round(sum(a * b for a, b in zip(unit[query], unit[item], strict=True)), 12)
            for item in gallery
        }
        order = sorted(gallery, key=lambda item, alike=alike: -alike[item])
        kept = []
        for item in order:
            same_person = images.persons[item] == images.persons[query]
            same_camera = images.cameras[item] == images.cameras[query]
            beside = images.cameras[query] == 3 and images.cameras[item] == 2
            if not (beside if is_sysu else same_person and same_camera):
                kept.append(item)
        right = [n for n, item in enumerate(kept) if images.persons[item] == images.persons[query]]
        if not right:
            continue
        precisions.append(sum((k + 1) / (n + 1) for k, n in enumerate(right)) / len(right))
        penalties.append(len(right) / (right[-1] + 1))
        seen = list(dict.fromkeys(int(images.persons[item]) for item in kept))
        person = int(images.persons[query])
        places.append(seen.index(person) + 1 if is_sysu else right[0] + 1)
    count = len(precisions)
    scores = {"mAP": sum(precisions) / count, "mINP": sum(penalties) / count}
    return scores | {f"r{n}": sum(p <= n for p in places) / count for n in (1, 5, 10, 20)}


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("kind", WRITERS)
def test_scores_are_those_of_a_plain_loop(tmp_path: Path, kind: str, ties: bool) -> None:
    found = asked_of(WRITERS[kind](tmp_path))
    for seed in range(3):
        tokens = tokens_of(found, seed=seed, ties=ties)
        scores = evaluate_public(tokens, found.images, found.searches, fuse)
        for search in found.searches:
            ending = f"_{search.name}" if search.name else ""
            loops = [
                slow_scores(found, tokens, search.queries.tolist(), gallery.tolist())
                for gallery in search.galleries
            ]
            for score in ("mAP", "mINP", "r1", "r5", "r10", *(("r20",) if ending else ())):
                mean = sum(loop[score] for loop in loops) / len(loops)
                assert scores[score + ending] == pytest.approx(mean, abs=1e-9), (score, search.name)


def test_a_person_counts_once_however_many_images_come_before() -> None:
    similarities = np.array([[0.9, 0.8, 0.7, 0.1, 0.6]])
    gallery = np.array([4, 4, 4, 9, 2])
    assert person_ranks(similarities, np.array([2]), gallery).tolist() == [2]
    assert person_ranks(similarities, np.array([9]), gallery).tolist() == [3]
    assert person_ranks(similarities, np.array([1]), gallery).tolist() == [4]


def test_an_infrared_camera_does_not_look_at_the_one_beside_it(tmp_path: Path) -> None:
    """Images of camera 2 change nothing for queries of camera 3."""
    found = asked_of(write_sysu(tmp_path))
    tokens = tokens_of(found, seed=1, ties=False)
    search = found.searches[0]
    cameras = found.images.cameras
    near = [
        type(search)(
            name="all",
            modality="nir",
            queries=search.queries[cameras[search.queries] == 3],
            galleries=galleries,
            by_person=True,
        )
        for galleries in (
            search.galleries,
            tuple(one[cameras[one] != 2] for one in search.galleries),
        )
    ]
    with_it, without = (evaluate_public(tokens, found.images, (one,), fuse) for one in near)
    assert with_it == without


def test_reranking_keeps_the_rules_of_cameras(tmp_path: Path) -> None:
    """With the weight of plain distances alone, re-ranking orders as cosines do."""
    plain = Reranking(k1=3, k2=1, weight=1.0)
    for write in (write_market, write_sysu):
        found = asked_of(write(tmp_path / write.__name__))
        tokens = tokens_of(found, seed=2, ties=False)
        scores = evaluate_public(tokens, found.images, found.searches, fuse)
        again = evaluate_public(tokens, found.images, found.searches, fuse, reranking=plain)
        assert again == pytest.approx(scores, abs=1e-9)


def test_queries_that_nobody_answers_are_an_error(tmp_path: Path) -> None:
    found = asked_of(write_sysu(tmp_path))
    nobody = found.images.persons.copy()
    nobody[found.searches[0].queries] += 10_000
    strangers = replace(found.images, persons=nobody)
    with pytest.raises(DataError, match="none of the"):
        evaluate_public(tokens_of(found, seed=0, ties=False), strangers, found.searches, fuse)


SMALL: dict[str, Any] = {
    "model": {
        "kind": "clip_reid",
        "backbone": "tiny",
        "embed_dim": 16,
        "fusion_heads": 2,
        "text_len": 8,
    },
    "data": {"image_size": [16, 8], "holdout": 0, "records_per_id": 2},
    "loader": {"workers": 0},
    "loss": {"sdm": {"weight": 0}},
    "train": {"batch_size": 4, "steps": 1},
    "eval": {"batch_size": 8},
}


@pytest.mark.parametrize("kind", WRITERS)
def test_a_model_is_judged_by_the_set_s_own_scores(tmp_path: Path, kind: str) -> None:
    root = WRITERS[kind](tmp_path)
    config = config_from(SMALL, [f"data.root={root}"]).config
    task = build_reid(config)
    torch.manual_seed(0)
    model = task.build_model()
    samples = task.eval_samples()
    batch = task.collate([samples.sample(0, place) for place in range(len(samples))])
    scores = evaluate(
        task, model, [batch], precision=Precision("fp32", CPU), device=CPU, ranks=Ranks()
    )
    assert ("r20_indoor" if kind == "sysu_mm01" else "mAP") in scores
    assert set(scores) == set(task.higher_is_better)
    assert all(0 <= value <= 1 for value in scores.values())


def test_a_set_whose_truth_is_known_is_not_handed_in(tmp_path: Path) -> None:
    root = write_market(tmp_path / "set")
    task = build_reid(config_from(SMALL, [f"data.root={root}"]).config)
    submission = Submission(path=tmp_path / "rankings.csv", top=None, style="keys")
    with pytest.raises(DataError, match="leave out --submit"):
        task.write_submission(task.metrics(), torch.zeros(1), submission)
