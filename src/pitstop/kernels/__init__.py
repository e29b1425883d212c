"""Operations that have, or will have, a fast version of their own.

One file an operation. Each holds a plain PyTorch reference whose docstring is the contract, a
``dispatch`` that picks the version to run, and ``FORMULAS``: floating point operations and bytes
as plain functions of shapes, for whoever counts or predicts.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from pitstop.errors import ConfigError

Kernels: TypeAlias = Literal["auto", "reference", "fused"]
"""Which version of an operation to run; ``auto`` takes the fastest one there is."""

KERNELS: Final[tuple[Kernels, ...]] = ("auto", "reference", "fused")


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """What one call of an operation costs, from its shapes alone.

    ``flops`` counts a multiply and an add as two. ``num_bytes`` is the floor: every input read
    once and every output written once, nothing in between kept.
    """

    flops: Callable[..., int]
    num_bytes: Callable[..., int]


def has_triton() -> bool:
    """Whether Triton can be imported."""
    return importlib.util.find_spec("triton") is not None


def block_size(size: int) -> int:
    """Smallest power of two that holds a size: Triton's blocks have no other sizes."""
    return 1 << (size - 1).bit_length()


def product_block(size: int) -> int:
    """The same for a side of a matrix product, which tensor cores take from 16 on."""
    return max(block_size(size), 16)


def refuse_without_triton(kernels: Kernels, *, operation: str) -> None:
    """Stop a caller who asks for a fused version that cannot run here.

    Raises:
        ConfigError: For ``fused`` where there is no Triton, and for a word that names no version.
    """
    check_word(kernels)
    if kernels == "fused" and not has_triton():
        raise ConfigError(
            f"model.kernels is 'fused', but {operation} needs Triton, which is not installed; set "
            "model.kernels to 'auto' or 'reference'"
        )


def check_word(kernels: Kernels) -> None:
    """Stop at a word that names no version.

    Raises:
        ConfigError: For such a word.
    """
    if kernels not in KERNELS:
        raise ConfigError(f"model.kernels is {kernels!r}; choose one of {', '.join(KERNELS)}")
