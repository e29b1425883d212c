"""Operations that have, or will have, a fast version of their own.

One file an operation. Each holds a plain PyTorch reference whose docstring is the contract, a
``dispatch`` that picks the version to run, and ``FORMULAS``: floating point operations and bytes
as plain functions of shapes, for whoever counts or predicts.
"""

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


def refuse_fused(kernels: Kernels, *, operation: str) -> None:
    """Stop a caller who asks for a version of ``operation`` that is not there.

    Raises:
        ConfigError: For ``fused``, and for a word that names no version.
    """
    if kernels not in KERNELS:
        raise ConfigError(f"model.kernels is {kernels!r}; choose one of {', '.join(KERNELS)}")
    if kernels == "fused":
        raise ConfigError(
            f"model.kernels is 'fused', but {operation} has no fused version; "
            "set model.kernels to 'auto' or 'reference'"
        )
