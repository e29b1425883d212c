"""What pitstop's own engine trains: enough to tell whether two runs did the same work."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetup:
    """What a run of the engine works on. Kind ``engine``."""

    model: str
    """Class of the model."""
    parameters: int
    """Numbers that are trained."""
    number_format: str
    """Of products: ``"float32"``, ``"tf32"``, ``"bfloat16"``, ``"float16"``."""
    device: str
    """Name of the GPU, or ``"cpu"``."""
    settings: Mapping[str, Any]
    """Settings that decide what is computed, by name; those that only change its speed are not."""
