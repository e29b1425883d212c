"""The same people and modalities, told in the ways in which datasets tell them."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Subset

from pitstop.data.sampling.pk_metadata import read_metadata
from pitstop.data.sampling.pk_sampler import PKSampler
from pitstop.errors import DataError

NAMES = ("vis", "nir", "sk", "cp", "text")
RECORDS = st.lists(
    st.tuples(st.integers(0, 5), st.sets(st.integers(0, 4), min_size=1)), min_size=1, max_size=30
)


def by_mask(person: int, bits: set[int]) -> dict[str, Any]:
    # A tag that names one modality only does not count beside a mask that names all.
    mask = {name: float(at in bits) for at, name in enumerate(NAMES)}
    return {"person_id": person, "modality": "vis", "modality_mask": mask}


def by_bits(person: int, bits: set[int]) -> dict[str, Any]:
    return {"pid": person, "modality_mask": sum(1 << bit for bit in bits)}


def by_names(person: int, bits: set[int]) -> dict[str, Any]:
    return {"pid": person, "modalities": [NAMES[bit] for bit in bits]}


def by_keys(person: int, bits: set[int]) -> dict[str, Any]:
    held = {name: [f"{name}/1.jpg"] if at in bits else [] for at, name in enumerate(NAMES)}
    return {"identity": person, **held}


def by_nested_keys(person: int, bits: set[int]) -> dict[str, Any]:
    images = {name: f"{name}.jpg" if at in bits else None for at, name in enumerate(NAMES)}
    return {"id": person, "file_path": "a.jpg", "images": images}


@pytest.mark.parametrize("told", [by_mask, by_bits, by_names, by_keys, by_nested_keys])
@given(records=RECORDS)
def test_every_way_of_telling_gives_the_same(
    told: Callable[[int, set[int]], dict[str, Any]], records: list[tuple[int, set[int]]]
) -> None:
    people, masks = read_metadata([told(person, bits) for person, bits in records])
    assert people.tolist() == [person for person, _ in records]
    assert masks.tolist() == [sum(1 << bit for bit in bits) for _, bits in records]


@pytest.mark.parametrize("columns", ["names", "one for each"])
def test_a_table_tells_it_too(tmp_path: Path, columns: str) -> None:
    records = [("0007", {0, 1}), ("0007", {2}), ("0012", {0}), ("0", {0, 4})]
    path = tmp_path / "records.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        if columns == "names":
            writer.writerow(["person_id", "Modality"])
            rows = [[pid, "+".join(NAMES[bit] for bit in bits)] for pid, bits in records]
        else:
            writer.writerow(["person_id", *NAMES])
            rows = [[pid, *(int(at in bits) for at in range(5))] for pid, bits in records]
        writer.writerows(rows)
    people, masks = read_metadata(path)
    assert people.tolist() == [pid for pid, _ in records]
    assert masks.tolist() == [sum(1 << bit for bit in bits) for _, bits in records]


@pytest.mark.parametrize(
    ("attribute", "records"),
    [
        ("img_items", [("a.jpg", "market_3", "c1"), ("b.jpg", "market_5", "c2")]),
        ("dataset", [("a.jpg", 3, 0, 1), ("b.jpg", 5, 1, 1)]),
        ("dataset", [(3, 17, "a.jpg", "a man in red"), (5, 18, "b.jpg", "a woman")]),
        ("imgs", [("a.jpg", 3), ("b.jpg", 5)]),
    ],
)
def test_tuples_are_rgb_pictures_with_a_person(attribute: str, records: list[Any]) -> None:
    class Pictures:
        def __len__(self) -> int:
            return len(records)

    dataset = Pictures()
    setattr(dataset, attribute, records)
    people, masks = read_metadata(dataset)
    assert [str(person)[-1] for person in people] == ["3", "5"]
    assert masks.tolist() == [1, 1]


def test_a_function_tells_what_a_dataset_does_not() -> None:
    class Silent:
        def __len__(self) -> int:
            return 48

        def __getitem__(self, index: int) -> None:
            raise AssertionError("a sample was read")

    def describe(index: int) -> tuple[str, list[str]]:
        return f"p{index // 8}", ["rgb"] if index % 2 else ["nir", "sk"]

    sampler = PKSampler.from_dataset(Silent(), 16, 4, describe=describe)
    asked = np.array([f"p{index // 8}" for index in range(48)])
    for batch in sampler:
        _, counts = np.unique(asked[batch], return_counts=True)
        assert counts.tolist() == [4, 4, 4, 4]
        assert any(index % 2 for index in batch)


def test_short_names_of_modalities_mean_a_sketch_and_a_colour_pencil() -> None:
    def masks(short: str) -> list[int]:
        return read_metadata([{"pid": 1, short: "a.png"}, {"pid": 1, "rgb": "b.png"}])[1].tolist()

    assert masks("sk") == masks("sketch") != masks("cp") == masks("pencil")
    # A skeleton is no sketch and a segmentation no drawing: neither is taken for one.
    with pytest.raises(DataError, match="no modality"):
        masks("skeleton")


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([{"pid": 1, "modality_mask": [1, 0, 1]}], "whose places have no names"),
        ([{"pid": 1, "vis": None, "nir": []}], "has no modality"),
    ],
)
def test_what_is_not_said_is_refused(records: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_metadata(records)


def test_a_table_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_text("person_id,modality\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"empty\.csv has no records"):
        read_metadata(tmp_path / "empty.csv")
    with pytest.raises(DataError, match=r"nothing\.csv cannot be read"):
        read_metadata(str(tmp_path / "nothing.csv"))


def test_records_that_name_no_modality_need_no_pairs() -> None:
    class Pictures:
        img_items = tuple((f"{at}.jpg", at // 5, 0) for at in range(30))

        def __len__(self) -> int:
            return len(self.img_items)

    for batch in PKSampler.from_dataset(Pictures(), 6, 2):
        assert sorted(np.bincount([index // 5 for index in batch], minlength=6))[-3:] == [2, 2, 2]
    part = Subset(Pictures(), range(10, 30))  # pyright: ignore[reportArgumentType] - as used
    assert len(PKSampler.from_dataset(part, 6, 2)) > 0
    with pytest.raises(DataError, match="prefer_complete=False in from_dataset"):
        PKSampler.from_dataset(Pictures(), 6, 2, prefer_complete=True)


@pytest.mark.parametrize("name", ["targets", "labels"])
@pytest.mark.parametrize("make", [list, np.array, torch.tensor])
def test_plain_labels_name_people_on_rgb_pictures(name: str, make: Any) -> None:
    class Labelled:
        data = np.zeros((30, 2, 2, 3), np.uint8)

        def __len__(self) -> int:
            return 30

    setattr(Labelled, name, make([at // 5 for at in range(30)]))
    for batch in PKSampler.from_dataset(Labelled(), 6, 2):
        assert sorted(np.bincount([index // 5 for index in batch], minlength=6))[-3:] == [2, 2, 2]


def test_labels_that_are_no_people_are_refused() -> None:
    class Regressed:
        targets = np.linspace(0, 1, 30)

        def __len__(self) -> int:
            return 30

    with pytest.raises(DataError, match="nor targets or labels as long as itself"):
        PKSampler.from_dataset(Regressed(), 6, 2)


def test_where_modalities_are_named_only_people_with_a_pair_are_taken() -> None:
    records = [{"pid": at // 4, "modality": "vis+nir"} for at in range(16)]
    records += [{"pid": 9, "modality": "vis"} for _ in range(4)]
    drawn = {index for batch in PKSampler.from_dataset(records, 8, 2) for index in batch}
    assert max(drawn, default=99) < 16
