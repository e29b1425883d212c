"""Rankings for a challenge: written in order, and refused by a judge where they are wrong."""

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pitstop.config.workloads.reid import ReidData
from pitstop.errors import DataError
from pitstop.workloads.reid.data.dataset import load_people
from pitstop.workloads.reid.data.queries import EvalSet, eval_set
from pitstop.workloads.reid.reranking import Reranking, rerank
from pitstop.workloads.reid.submission import (
    Style,
    check_submission,
    order_gallery,
    write_rankings,
)
from tests.unit.workloads.reid.people_files import jpeg, write_people

PEOPLE = {f"{n:04}": {"rgb": 2, "nir": 1, "cp": 1} for n in range(1, 5)}
QUERIES: list[dict[str, Any]] = [
    {"query_idx": 1, "query_type": "onemodal_NIR", "content": ["nir/7.jpg"]},
    {"query_idx": 2, "query_type": "twomodal_CP_TEXT", "content": ["cp/8.jpg", "a man in red"]},
    {"query_idx": 3, "query_type": "onemodal_TEXT", "content": ["a coat, long, and a hat"]},
]


def challenge(folder: Path) -> EvalSet:
    root = write_people(folder, PEOPLE)
    for name, files in (("gallery", range(1, 6)), ("nir", (7,)), ("cp", (8,))):
        (root / "val" / name).mkdir(parents=True)
        for number in files:
            (root / "val" / name / f"{number}.jpg").write_bytes(jpeg())
    (root / "val" / "val_queries.json").write_text(json.dumps(QUERIES))
    data = ReidData(root=root, holdout=0.0, eval_split="val", image_size=(16, 8))
    return eval_set(load_people(data), data, text_len=8)


def held_back(folder: Path) -> EvalSet:
    data = ReidData(root=write_people(folder, PEOPLE), holdout=0.5, image_size=(16, 8))
    return eval_set(load_people(data), data, text_len=8)


def mean_token(tokens: Tensor, present: Tensor) -> Tensor:
    return tokens.sum(dim=1) / present.sum(dim=1, keepdim=True)


def tokens_of(evaluation: EvalSet) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(len(evaluation.images), 6, generator=draw)


def written(evaluation: EvalSet, path: Path, style: Style, top: int | None = None) -> Path:
    rankings = order_gallery(tokens_of(evaluation), evaluation, mean_token, top=top)
    write_rankings(evaluation, rankings, path, style=style)
    return path


def rows_of(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))


def test_every_query_has_the_gallery_in_the_order_of_cosines(tmp_path: Path) -> None:
    evaluation = challenge(tmp_path)
    path = written(evaluation, tmp_path / "out" / "answers.csv", "keys")
    header, *rows = rows_of(path)
    assert header == ["query_key", "ranked_gallery_ids"]
    tokens = functional.normalize(tokens_of(evaluation))
    names = [Path(evaluation.images.paths[p]).stem for p in evaluation.images.gallery]
    assert [row[0] for row in rows] == ["1", "2", "3"]
    nir = int(evaluation.tasks[0].items[0, 0])
    order = (tokens[nir] @ tokens[evaluation.images.gallery].T).argsort(descending=True)
    assert rows[0][1].split(" ") == [names[place] for place in order]
    assert all(sorted(row[1].split(" ")) == ["1", "2", "3", "4", "5"] for row in rows)
    assert "5 of 5 images in order for each of 3 queries" in check_submission(
        path, evaluation, style="keys", top=None
    )
    assert list(path.parent.iterdir()) == [path]


def test_the_challenges_own_columns_name_number_and_kind(tmp_path: Path) -> None:
    evaluation = challenge(tmp_path)
    path = written(evaluation, tmp_path / "answers.csv", "challenge", top=2)
    header, *rows = rows_of(path)
    assert header == ["query_idx", "query_type", "ranking_list_idx"]
    assert [row[:2] for row in rows] == [
        [str(one["query_idx"]), one["query_type"]] for one in QUERIES
    ]
    assert all(len(json.loads(row[2])) == 2 for row in rows)
    check_submission(path, evaluation, style="challenge", top=2)


def test_lists_without_numbers_name_queries_by_what_they_are(tmp_path: Path) -> None:
    evaluation = held_back(tmp_path)
    path = written(evaluation, tmp_path / "answers.csv", "keys", top=100)
    keys = [row[0] for row in rows_of(path)[1:]]
    assert len(set(keys)) == len(keys) == sum(map(len, evaluation.tasks))
    assert any(key.startswith("MM-2|NIR+CP|") for key in keys)
    check_submission(path, evaluation, style="keys", top=100)
    with pytest.raises(DataError, match="needs a number"):
        written(evaluation, tmp_path / "other.csv", "challenge")
    assert not (tmp_path / "other.csv").exists()


def test_re_ranked_orders_are_those_of_its_distances(tmp_path: Path) -> None:
    evaluation, settings = held_back(tmp_path), Reranking(k1=2, k2=1)
    tokens = tokens_of(evaluation)
    images = tokens[evaluation.images.gallery]
    for ranked in order_gallery(tokens, evaluation, mean_token, top=3, reranking=settings):
        if len(ranked.task.modalities) == 1:
            asked = tokens[ranked.task.items[:, 0]]
            wanted = rerank(asked, images, settings).argsort(dim=1, stable=True)[:, :3]
            assert np.array_equal(ranked.places, wanted.numpy())


Change = Callable[[list[list[str]]], object]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows: rows.pop(), "lacks 1 of 3 queries, such as 3"),
        (lambda rows: rows.append(rows[1]), "line 5: 1 is there twice"),
        (lambda rows: rows.append(["9", rows[1][1]]), "line 5: 9 is no query"),
        (lambda rows: rows[2].__setitem__(1, "1 2 3"), "line 3 orders 3 images, not 5"),
        (lambda rows: rows[2].__setitem__(1, "1 2 3 4 4"), "line 3 has an image twice"),
        (lambda rows: rows[2].__setitem__(1, "1 2 3 4 6"), "'6' is no image of the gallery"),
        (lambda rows: rows[0].reverse(), "begins with ranked_gallery_ids,query_key"),
    ],
)
def test_a_judge_refuses_what_is_wrong_by_its_line(
    tmp_path: Path, change: Change, said: str
) -> None:
    evaluation = challenge(tmp_path)
    path = written(evaluation, tmp_path / "answers.csv", "keys")
    rows = rows_of(path)
    change(rows)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    with pytest.raises(DataError, match=said):
        check_submission(path, evaluation, style="keys", top=None)


def test_a_check_leaves_the_process_s_limit_of_csv_fields_alone(tmp_path: Path) -> None:
    # The limit is one for all readers: raised for good, damaged logs would be read as sound.
    evaluation = challenge(tmp_path)
    limit = csv.field_size_limit()
    path = written(evaluation, tmp_path / "answers.csv", "keys")
    path.write_text(path.read_text() + f"9,{'1 ' * limit}\n")
    with pytest.raises(DataError, match="9 is no query"):
        check_submission(path, evaluation, style="keys", top=None)
    assert csv.field_size_limit() == limit


def test_a_name_with_a_space_cannot_be_handed_in(tmp_path: Path) -> None:
    evaluation = challenge(tmp_path)
    images = evaluation.images
    paths = [
        images.paths[place].replace("gallery/2", "gallery/2 b") for place in range(len(images))
    ]
    spaced = replace(evaluation, images=replace(images, paths=type(images.paths).of(paths)))
    with pytest.raises(DataError, match="'2 b' of the gallery needs a name without spaces"):
        written(spaced, tmp_path / "answers.csv", "keys")
