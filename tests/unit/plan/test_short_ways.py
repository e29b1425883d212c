"""Short ways to fake tensors: they end where torch's own way ends."""
# pyright: reportPrivateUsage=false

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from pitstop.plan.dry_run.short_ways import ShortWays

HOST = torch.device("cpu")
ATEN: Any = torch.ops.aten
OPERATIONS: dict[str, tuple[Any, Callable[[Tensor], tuple[Any, ...]], dict[str, Any]]] = {
    "copy": (ATEN._to_copy.default, lambda x: (x,), {"dtype": torch.float16}),
    "zeros": (ATEN.zeros_like.default, lambda x: (x,), {"memory_format": torch.preserve_format}),
    "other format": (
        ATEN.zeros_like.default,
        lambda x: (x,),
        {"memory_format": torch.channels_last},
    ),
    "transposed": (ATEN.transpose.int, lambda x: (x, 1, 2), {}),
    "slice": (ATEN.slice.Tensor, lambda x: (x, 3, 1, 5), {}),
    "parts": (ATEN.split.Tensor, lambda x: (x, 2, 1), {}),
    "sum": (ATEN.sum.dim_IntList, lambda x: (x, [1], True), {}),
    "sum of all": (ATEN.sum.default, lambda x: (x,), {}),
    "times a float": (ATEN.mul.Tensor, lambda x: (x, 2.0), {}),
    "times an integer": (ATEN.mul.Tensor, lambda x: (x, 2), {}),
    "times a number that is true": (ATEN.mul.Tensor, lambda x: (x, True), {}),
    "several results": (ATEN.native_layer_norm.default, lambda x: (x, [8], None, None, 1e-5), {}),
    "one of two": (ATEN.cat.default, lambda x: ([x, x], 1), {}),
    "in place": (ATEN.add_.Tensor, lambda x: (x, 1), {}),
    "as it is": (ATEN.to.dtype, lambda x: (x, x.dtype), {}),
}
LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "plain": lambda: torch.empty(2, 4, 6, 8),
    "whole numbers": lambda: torch.empty(2, 4, 6, 8, dtype=torch.int64),
    "channels last": lambda: torch.empty(2, 4, 6, 8).to(memory_format=torch.channels_last),
    "turned": lambda: torch.empty(8, 4, 6, 2).transpose(0, 3),
    "a part": lambda: torch.empty(2, 4, 9, 8)[:, :, 3:],
    "repeated": lambda: torch.empty(2, 1, 6, 8).expand(2, 4, 6, 8),
    "one sample": lambda: torch.empty(1, 4, 6, 8),
}


def described(made: Any, given: Tensor) -> list[tuple[Any, ...]]:
    """Everything about results that a ledger or a later operation can see."""
    tensors = made if isinstance(made, (tuple, list)) else [made]
    return [
        (
            tensor.shape,
            tensor.stride(),
            tensor.dtype,
            tensor.storage_offset(),
            tensor.untyped_storage().nbytes(),
            tensor.untyped_storage()._cdata == given.untyped_storage()._cdata,
            tensor.requires_grad,
        )
        for tensor in tensors
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_both_ways_end_at_the_same_tensors(name: str, layout: str) -> None:
    func, arguments, kwargs = OPERATIONS[name]
    mode = FakeTensorMode()
    ways = ShortWays(mode, HOST)
    with mode:
        given = LAYOUTS[layout]()
        if name == "several results" and not given.is_floating_point():
            given = given.float()
        args = arguments(given)
        expected = described(func(*args, **kwargs), given)

    def long_way() -> Any:
        with mode:
            return func(*args, **kwargs)

    # The first call learns what the second makes by itself.
    for _ in range(2):
        assert described(ways.run(func, args, kwargs, long_way), given) == expected


def test_what_is_known_is_not_asked_again_and_new_every_time() -> None:
    mode = FakeTensorMode()
    ways = ShortWays(mode, HOST)
    asked = []
    with mode:
        given = torch.empty(4, 4)

    def long_way() -> Any:
        asked.append(1)
        with mode:
            return ATEN.mul.Tensor(given, 2)

    made = [ways.run(ATEN.mul.Tensor, (given, 2), {}, long_way) for _ in range(3)]
    assert len(asked) == 1
    assert len({one.untyped_storage()._cdata for one in made}) == 3


def test_numbers_that_are_equal_and_not_alike_are_told_apart() -> None:
    mode = FakeTensorMode()
    ways = ShortWays(mode, HOST)
    with mode:
        given = torch.empty(4, dtype=torch.int64)
    for factor, dtype in ((1, torch.int64), (1.0, torch.float32), (True, torch.int64)):

        def long_way(factor: float = factor) -> Any:
            with mode:
                return ATEN.mul.Tensor(given, factor)

        assert ways.run(ATEN.mul.Tensor, (given, factor), {}, long_way).dtype == dtype
