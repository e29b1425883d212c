"""Queries beside what was found: the right ones are marked right, by the protocol's own gallery."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from pitstop.config.workloads.reid import ReidData
from pitstop.workloads.reid.data.dataset import load_people
from pitstop.workloads.reid.data.queries import EvalSet, eval_set
from pitstop.workloads.reid.ranked_pictures import draw_rankings
from pitstop.workloads.reid.synthetic.make import make_reid
from tests.unit.workloads.reid.public_files import write_market, write_sysu


def made(root: Path) -> Path:
    make_reid(root, people=10, images=6, size=(64, 32), seed=2, corrupt=0)
    return root


def evaluation_of(root: Path) -> EvalSet:
    data = ReidData(root=root, holdout=0.0, image_size=(32, 16))
    return eval_set(load_people(data), data, text_len=12)


def mean(tokens: Tensor, present: Tensor) -> Tensor:
    share = present[..., None].float()
    return functional.normalize((tokens * share).sum(1) / share.sum(1))


def knowing(evaluation: EvalSet) -> Tensor:
    """Features that are one direction for each person: a perfect search."""
    persons = torch.from_numpy(evaluation.images.persons)
    return functional.one_hot(persons - persons.min()).float()


@pytest.mark.parametrize("write", [made, write_market, write_sysu])
def test_a_perfect_search_is_marked_right_first(
    tmp_path: Path, write: Callable[[Path], Path]
) -> None:
    evaluation = evaluation_of(write(tmp_path / "set"))
    folder = tmp_path / "pictures"
    rows = draw_rankings(evaluation, knowing(evaluation), mean, folder, count=6)
    assert len(rows) == 6
    for row in rows:
        marks = [cell.caption for cell in row.cells if not cell.caption.startswith("query")]
        assert marks[0] == "1 right"
        wrong = [" wrong" in mark for mark in marks]
        assert wrong == sorted(wrong)
        assert all((folder / cell.file).is_file() for cell in row.cells)
        assert row.note is not None
    files = [cell.file for row in rows for cell in row.cells]
    assert len(files) == len(set(files))
    # A green border for what is right.
    first = next(cell for cell in rows[0].cells if cell.caption == "1 right")
    red, green, blue = np.asarray(Image.open(folder / first.file).convert("RGB"))[1, 1].tolist()
    assert green > red
    assert green > blue


def test_the_query_s_own_camera_is_left_out_as_the_protocol_does(tmp_path: Path) -> None:
    evaluation = evaluation_of(write_market(tmp_path / "set"))
    tokens = knowing(evaluation)
    cameras = torch.from_numpy(evaluation.images.cameras)
    # The same camera would win, were it not left out.
    tokens = torch.cat([tokens, 5 * functional.one_hot(cameras).float()], dim=1)
    rows = draw_rankings(evaluation, tokens, mean, tmp_path / "p", count=3)
    assert all(len(row.cells) == 6 for row in rows)
