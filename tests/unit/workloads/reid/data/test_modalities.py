"""Names, bits, and the 32 tasks."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.workloads.reid.data.modalities import (
    IMAGE_MODALITIES,
    MODALITIES,
    bit,
    name_of_task,
    task_names,
)
from tests.unit.workloads.reid.people_files import mask_of, modalities_in


def test_rgb_is_bit_0_as_the_sampler_has_it() -> None:
    assert MODALITIES == ("rgb", "nir", "cp", "sk", "text")
    assert [bit(name) for name in MODALITIES] == [1, 2, 4, 8, 16]
    assert MODALITIES[:4] == IMAGE_MODALITIES


@given(st.sets(st.sampled_from(MODALITIES)))
def test_a_mask_gives_its_names_back(names: set[str]) -> None:
    assert set(modalities_in(mask_of(names))) == names


def test_there_are_32_ordered_tasks() -> None:
    tasks = task_names()
    assert [sum(len(task) == size for task in tasks) for size in (1, 2, 3, 4)] == [4, 12, 12, 4]
    assert len({(task[0], frozenset(task)) for task in tasks}) == 32
    assert not any("rgb" in task for task in tasks)
    pairs = {task for task in tasks if len(task) == 2}
    assert pairs == set(permutations(("nir", "cp", "sk", "text"), 2))


@pytest.mark.parametrize(
    "name", ["NIR", "CP+NIR", "TEXT+NIR+CP+SK", "SK+CP+TEXT", "NIR+CP+TEXT", "CP+NIR+SK+TEXT"]
)
def test_tasks_are_spelled_as_in_the_release(name: str) -> None:
    assert name in {name_of_task(task) for task in task_names()}
