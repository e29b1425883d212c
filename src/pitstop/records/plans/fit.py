"""Whether something fits."""

from typing import Final, Literal

Fit = Literal["fits", "too close", "does not fit"]
ORDER: Final[tuple[Fit, ...]] = ("fits", "too close", "does not fit")
"""From good to bad."""
