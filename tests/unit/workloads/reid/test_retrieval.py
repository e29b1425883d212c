"""Folders of small images searched with an encoder that knows colours alone."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from pitstop.errors import DataError
from pitstop.records.pictures import picture_bytes, read_pictures
from pitstop.records.store import from_json
from pitstop.workloads.reid import retrieval
from pitstop.workloads.reid.retrieval import Rankings, Search, check_folders, search_folders

torch.set_num_threads(1)

RED, GREEN, BLUE, PINK = (200, 0, 0), (0, 200, 0), (0, 0, 200), (200, 80, 80)
Colour = tuple[int, int, int]


def draw(path: Path, colour: Colour) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (6, 12), colour).save(path)


def mean_colour(paths: Sequence[Path], modality: str) -> Tensor:
    return torch.stack(
        [
            torch.from_numpy(np.asarray(Image.open(path), dtype=np.float32).mean((0, 1)))
            for path in paths
        ]
    )


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    queries, gallery = tmp_path / "queries", tmp_path / "gallery"
    draw(queries / "nir" / "0001" / "a.png", RED)
    draw(queries / "sk" / "0002_front_b.png", GREEN)
    draw(queries / "0009_cp.png", BLUE)
    draw(queries / "nir" / "somebody.png", PINK)
    draw(gallery / "0001" / "x.png", PINK)
    draw(gallery / "0002" / "y.png", RED)
    draw(gallery / "0002" / "z.png", GREEN)
    draw(gallery / "street.png", BLUE)
    return queries, gallery


def read(folder: Path) -> Rankings:
    return from_json((folder / "rankings.json").read_text(encoding="utf-8"), Rankings)


def test_modality_and_person_are_read_off_the_path(folders: tuple[Path, Path]) -> None:
    search = check_folders(*folders)
    assert [(one.name, one.modality, one.person) for one in search.queries] == [
        ("0009_cp.png", "cp", "9"),
        ("nir/0001/a.png", "nir", "1"),
        ("nir/somebody.png", "nir", None),
        ("sk/0002_front_b.png", "sk", "2"),
    ]
    assert [one.person for one in search.gallery] == ["1", "2", "2", None]
    assert {one.modality for one in search.gallery} == {"rgb"}


def test_every_query_gets_its_best_images_in_order(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    made = search_folders(check_folders(*folders), mean_colour, tmp_path / "out", top=2)
    found = read(tmp_path / "out")
    assert found.images == made.samples == 4
    best = {row.query: [(hit.image, hit.right) for hit in row.ranking] for row in found.queries}
    assert best == {
        "0009_cp.png": [("street.png", None), ("0001/x.png", False)],
        "nir/0001/a.png": [("0002/y.png", False), ("0001/x.png", True)],
        "nir/somebody.png": [("0001/x.png", None), ("0002/y.png", None)],
        "sk/0002_front_b.png": [("0002/z.png", True), ("0001/x.png", False)],
    }
    assert found.queries[0].ranking[0].similarity == pytest.approx(1.0, abs=1e-6)


def test_scores_count_only_queries_whose_person_is_in_the_gallery(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    made = search_folders(check_folders(*folders), mean_colour, tmp_path / "out")
    found = read(tmp_path / "out")
    assert found.scored == 2
    assert found.scores is not None
    # Person 1 comes second; the two images of person 2 come first and third.
    assert found.scores["mAP"] == pytest.approx((1 / 2 + (1 + 2 / 3) / 2) / 2)
    assert found.scores["r1"] == 0.5
    assert "R1 50.0% over 2 of 4 queries" in made.notes[0]


def test_the_table_has_a_line_for_each_pair(folders: tuple[Path, Path], tmp_path: Path) -> None:
    search_folders(check_folders(*folders), mean_colour, tmp_path / "out", top=4)
    with (tmp_path / "out" / "rankings.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 16
    own = [row for row in rows if row["query"] == "nir/0001/a.png"]
    assert [row["rank"] for row in own] == ["1", "2", "3", "4"]
    assert [row["right"] for row in own] == ["false", "true", "false", ""]


def test_pictures_show_the_query_and_mark_its_best_images(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    made = search_folders(check_folders(*folders), mean_colour, out, shown=2)
    pictures = read_pictures(out)
    assert pictures is not None
    assert [row.title for row in pictures.rows] == ["cp: 0009_cp.png", "sk: sk/0002_front_b.png"]
    captions = [cell.caption for cell in pictures.rows[1].cells]
    assert captions == ["query", "1 right", "2 wrong", "3 right", "4"]
    assert pictures.rows[1].note == "2 of the first 3 right"
    files = [cell for row in pictures.rows for cell in row.cells]
    assert all(picture_bytes(out, cell) for cell in files)
    assert made.files == len([path for path in out.rglob("*") if path.is_file()])


def test_without_names_of_people_nothing_is_scored_or_marked(tmp_path: Path) -> None:
    draw(tmp_path / "q" / "vis" / "a.png", RED)
    draw(tmp_path / "g" / "b.png", RED)
    made = search_folders(
        check_folders(tmp_path / "q", tmp_path / "g"), mean_colour, tmp_path / "out"
    )
    found = read(tmp_path / "out")
    assert (found.scores, found.scored) == (None, 0)
    assert found.queries[0].modality == "rgb"
    assert made.notes[0].startswith("not scored")
    pictures = read_pictures(tmp_path / "out")
    assert pictures is not None
    assert [cell.caption for cell in pictures.rows[0].cells] == ["query", "1"]
    assert pictures.rows[0].note is None


def test_equal_images_come_in_the_order_of_the_gallery(tmp_path: Path) -> None:
    draw(tmp_path / "q" / "nir" / "a.png", RED)
    for number in range(40):
        draw(tmp_path / "g" / f"{number:02d}.png", RED)
    search = check_folders(tmp_path / "q", tmp_path / "g")
    search_folders(search, mean_colour, tmp_path / "out", top=40)
    names = [hit.image for hit in read(tmp_path / "out").queries[0].ranking]
    assert names == sorted(names)


def test_images_reach_the_encoder_by_modality_and_in_batches(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrieval, "_BATCH", 3)
    seen: list[tuple[str, int]] = []

    def watched(paths: Sequence[Path], modality: str) -> Tensor:
        seen.append((modality, len(paths)))
        return mean_colour(paths, modality)

    search_folders(check_folders(*folders), watched, tmp_path / "small")
    assert seen == [("rgb", 3), ("rgb", 1), ("cp", 1), ("nir", 2), ("sk", 1)]
    monkeypatch.undo()
    search_folders(check_folders(*folders), mean_colour, tmp_path / "large")
    assert read(tmp_path / "small") == read(tmp_path / "large")


def test_a_query_of_no_modality_is_named(folders: tuple[Path, Path]) -> None:
    queries, gallery = folders
    draw(queries / "holiday.png", RED)
    with pytest.raises(
        DataError, match=r"nothing says the modality of holiday\.png; put them into"
    ):
        check_folders(queries, gallery)


def test_empty_and_missing_folders_are_named(folders: tuple[Path, Path], tmp_path: Path) -> None:
    queries, gallery = folders
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty holds no images .* for the gallery"):
        check_folders(queries, tmp_path / "empty")
    with pytest.raises(DataError, match=r"empty holds no images .* for queries"):
        check_folders(tmp_path / "empty", gallery)
    with pytest.raises(DataError, match=r"there is no folder .*nowhere"):
        check_folders(tmp_path / "nowhere", gallery)


def test_features_that_are_no_numbers_are_refused_before_anything_is_written(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    search: Search = check_folders(*folders)

    def broken(paths: Sequence[Path], modality: str) -> Tensor:
        features = mean_colour(paths, modality)
        return features * torch.nan if modality == "sk" else features

    with pytest.raises(DataError, match="1 of 4 query features hold NaN"):
        search_folders(search, broken, tmp_path / "out")
    assert not (tmp_path / "out").exists()
