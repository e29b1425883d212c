"""How large samples are: damaged ones are passed over and counted."""

import pytest
import torch
from torch import Tensor

from pitstop.data.loader.sample_bytes import estimate_sample_bytes
from pitstop.errors import DataError


class Some:
    """Samples that grow, some of them damaged."""

    def __init__(self, damaged: set[int]) -> None:
        self._damaged = damaged

    def __len__(self) -> int:
        return 4

    def sample(self, epoch: int, index: int) -> Tensor:
        del epoch
        if index in self._damaged:
            raise DataError(f"sample {index} is damaged")
        return torch.zeros(index + 1, dtype=torch.uint8)


def joined(samples: list[Tensor]) -> Tensor:
    return torch.stack(samples)


def test_damaged_samples_are_passed_over_and_counted() -> None:
    assert estimate_sample_bytes(Some(set()), joined, (0,)) == ((4,), 4, 0)
    assert estimate_sample_bytes(Some({0, 3}), joined, (0,)) == ((3,), 2, 2)


def test_where_all_are_damaged_the_first_says_so() -> None:
    with pytest.raises(DataError, match="sample 0 is damaged"):
        estimate_sample_bytes(Some({0, 1, 2, 3}), joined, (0,))
