"""Where files that travel with the package lie: in a wheel inside it, in a checkout beside it."""

from pathlib import Path
from typing import Final

_PACKAGE: Final = Path(__file__).parents[1]


def shipped_folder(in_wheel: str, *, in_checkout: str) -> Path | None:
    """Give the folder of such files; None where somebody took them out of the package.

    Args:
        in_wheel: Its place inside the installed package.
        in_checkout: Its place in the repository.
    """
    places = (_PACKAGE / in_wheel, _PACKAGE.parents[1] / in_checkout)
    return next((place for place in places if place.is_dir()), None)
