"""The five ways a person is described, their order, and their bits in a mask."""

from collections.abc import Iterable
from itertools import combinations
from typing import Final

RGB: Final = "rgb"
NIR: Final = "nir"
CP: Final = "cp"
SK: Final = "sk"
TEXT: Final = "text"

NAMES: Final = {
    RGB: "colour photograph",
    NIR: "near infrared",
    CP: "colour pencil",
    SK: "sketch",
    TEXT: "caption",
}
"""What the short names of folders and lists stand for."""

IMAGE_MODALITIES: Final = (RGB, NIR, CP, SK)

MODALITIES: Final = (*IMAGE_MODALITIES, TEXT)
"""Bit i of a mask, and column i of `ReidBatch.present`, stands for the i-th."""

PARTNER_ORDER: Final = (NIR, CP, SK, TEXT)
"""Order of modalities behind the first in the name of a query task."""

_FIRST_ORDER: Final = (TEXT, NIR, CP, SK)


def bit(modality: str) -> int:
    """Give the mask that has this modality alone."""
    return 1 << MODALITIES.index(modality)


def task_names() -> tuple[tuple[str, ...], ...]:
    """Give the modalities of the 32 ordered tasks: 4 single, 12 double, 12 triple, 4 fourfold."""
    return tuple(
        (first, *others)
        for count in range(len(PARTNER_ORDER))
        for first in _FIRST_ORDER
        for others in combinations([one for one in PARTNER_ORDER if one != first], count)
    )


def name_of_task(modalities: Iterable[str]) -> str:
    """Write a combination as the lists of the release do, such as CP+NIR+TEXT."""
    return "+".join(modality.upper() for modality in modalities)
