"""What a training process keeps on its device from step to step, known to the engine."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMemory:
    """Bytes by owner. Kind ``held``."""

    parameters_bytes: int
    gradients_bytes: int
    """While there are any: from backward to the update."""
    optimizer_bytes: int
    """Its state once there is one, from the second step on."""
    averaged_bytes: int = 0
    teacher_bytes: int = 0
