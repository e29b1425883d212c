"""The 32 tasks answered from tokens, against each query fused and ranked by itself."""

import math
from itertools import permutations

import numpy as np
import pytest
import torch
from torch import Tensor

from pitstop.errors import DataError
from pitstop.workloads.reid import protocol
from pitstop.workloads.reid.data.modalities import MODALITIES, RGB
from pitstop.workloads.reid.data.queries import QueryTask, name_of_task, task_names
from pitstop.workloads.reid.protocol import (
    METRICS,
    SIZES,
    Gallery,
    ProtocolScores,
    evaluate_protocol,
)

torch.set_num_threads(1)

PEOPLE = 6
EACH = 3
WIDTH = 12
WEIGHTS = (1.0, 1.2, 0.8, 1.4, 0.6)
OFFSET = 0.5


def fuse(tokens: Tensor, present: Tensor) -> Tensor:
    """A mean, weighted and moved, so that it matters which modalities are there and how many."""
    weighted = tokens * torch.tensor(WEIGHTS, dtype=tokens.dtype).unsqueeze(-1)
    return torch.where(present.unsqueeze(-1), weighted, torch.nan).nanmean(1) + OFFSET


class World:
    """People with three items of each modality; items are numbered by modality, then person."""

    def __init__(self, *, noise: float = 1.0, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        centres = torch.randn(PEOPLE, WIDTH, generator=generator, dtype=torch.float64)
        count = len(MODALITIES) * PEOPLE * EACH
        self.persons = np.arange(count) // EACH % PEOPLE
        jitter = torch.randn(count, WIDTH, generator=generator, dtype=torch.float64)
        self.tokens = centres[torch.from_numpy(self.persons)] + noise * jitter

    def item(self, modality: str, person: int, number: int) -> int:
        return (MODALITIES.index(modality) * PEOPLE + person) * EACH + number

    def gallery(self) -> Gallery:
        items = np.array([self.item(RGB, p, n) for p in range(PEOPLE) for n in range(EACH)])
        return Gallery(items=items, persons=self.persons[items])

    def task(self, modalities: tuple[str, ...]) -> QueryTask:
        items = [
            [
                self.item(modality, person, (number + place) % EACH)
                for place, modality in enumerate(modalities)
            ]
            for person in range(PEOPLE)
            for number in range(EACH)
        ]
        table = np.array(items)
        return QueryTask(
            name=name_of_task(modalities),
            modalities=modalities,
            persons=self.persons[table[:, 0]],
            items=table,
        )

    def tasks(self) -> list[QueryTask]:
        return [self.task(modalities) for modalities in task_names()]


def average_precision(world: World, items: list[int], person: int) -> float:
    """Fuse one query in plain numpy and sort the gallery by cosine."""
    weights = np.repeat(WEIGHTS, PEOPLE * EACH)[:, None]
    tokens = world.tokens.numpy() * weights + OFFSET
    feature = tokens[items].mean(axis=0)
    gallery = world.gallery()
    cosines = [
        feature @ tokens[item] / np.linalg.norm(feature) / np.linalg.norm(tokens[item])
        for item in gallery.items
    ]
    order = sorted(range(len(cosines)), key=lambda place: (-cosines[place], place))
    hits, total = 0, 0.0
    for position, place in enumerate(order, start=1):
        if gallery.persons[place] == person:
            hits += 1
            total += hits / position
    return total / hits


def scores_of(world: World, tasks: list[QueryTask] | None = None) -> ProtocolScores:
    return evaluate_protocol(
        world.tokens, world.gallery(), world.tasks() if tasks is None else tasks, fuse
    )


def test_every_task_scores_as_its_queries_do_one_by_one() -> None:
    world = World()
    by_task = scores_of(world).by_task()
    assert len(world.tasks()) == 32
    for task in world.tasks():
        alone = [
            average_precision(world, items, person)
            for items, person in zip(task.items.tolist(), task.persons.tolist(), strict=True)
        ]
        assert by_task[f"mAP/{task.name}"] == pytest.approx(np.mean(alone), abs=1e-9)


def test_sizes_are_averaged_over_4_12_12_and_4_tasks_and_the_score_over_sizes() -> None:
    scores = scores_of(World())
    named, by_task = scores.named(), scores.by_task()
    means = []
    for size, count in zip(SIZES, (4, 12, 12, 4), strict=True):
        names = [task.name for task in scores.tasks if len(task.name.split("+")) == len(means) + 1]
        assert len(names) == count
        for score in ("mAP", "mINP", "r1", "r5", "r10"):
            mean = sum(by_task[f"{score}/{name}"] for name in names) / count
            assert named[f"{score}_{size}"] == pytest.approx(mean, abs=1e-12)
        means.append(named[f"mAP_{size}"])
    assert named["score"] == scores.score == pytest.approx(sum(means) / 4, abs=1e-12)
    assert tuple(named) == METRICS


def test_more_modalities_help_where_their_noise_is_their_own() -> None:
    named = scores_of(World(noise=1.5)).named()
    assert named["mAP_one"] < named["mAP_two"] < named["mAP_three"] < named["mAP_four"]


def test_the_order_of_items_within_a_query_follows_the_name() -> None:
    world = World()
    first, second = (world.task(tuple(names)) for names in permutations(("nir", "text")))
    swapped = QueryTask(
        name=second.name,
        modalities=first.modalities[::-1],
        persons=first.persons,
        items=first.items[:, ::-1].copy(),
    )
    scores = scores_of(world, [first, swapped])
    assert scores.tasks[0].summary == scores.tasks[1].summary


def test_fusing_in_chunks_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = scores_of(World()).by_task()
    monkeypatch.setattr(protocol, "_CHUNK", 5)
    assert scores_of(World()).by_task() == whole


def test_no_more_than_a_chunk_is_fused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "_CHUNK", 5)
    sizes = []

    def watched(tokens: Tensor, present: Tensor) -> Tensor:
        sizes.append(len(tokens))
        return fuse(tokens, present)

    world = World()
    evaluate_protocol(world.tokens, world.gallery(), world.tasks(), watched)
    assert max(sizes) == 5
    assert sum(sizes) == 33 * PEOPLE * EACH


def test_a_size_without_tasks_has_no_score_and_neither_has_the_challenge() -> None:
    world = World()
    scores = scores_of(world, [world.task(("nir",)), world.task(("nir", "sk"))])
    named = scores.named()
    assert scores.score is None
    assert math.isnan(named["score"])
    assert math.isnan(named["mAP_three"])
    assert named["mAP_two"] > 0


def strangers(world: World, modalities: tuple[str, ...]) -> QueryTask:
    task = world.task(modalities)
    return QueryTask(
        name=task.name, modalities=modalities, persons=task.persons + PEOPLE, items=task.items
    )


def test_a_task_about_strangers_is_left_out() -> None:
    world = World()
    scores = scores_of(world, [world.task(("nir",)), strangers(world, ("sk",))])
    assert [task.name for task in scores.tasks] == ["NIR"]


def test_nothing_but_strangers_is_an_error() -> None:
    world = World()
    with pytest.raises(DataError, match="none of the 18 queries has an image of its person"):
        scores_of(world, [strangers(world, ("nir",))])


def test_an_empty_gallery_and_no_queries_are_errors() -> None:
    world, none = World(), np.empty(0, dtype=np.int64)
    with pytest.raises(DataError, match="the gallery has no images"):
        evaluate_protocol(world.tokens, Gallery(items=none, persons=none), world.tasks(), fuse)
    empty = QueryTask(name="NIR", modalities=("nir",), persons=none, items=none[:, None])
    with pytest.raises(DataError, match="no task has a query"):
        scores_of(world, [empty])
