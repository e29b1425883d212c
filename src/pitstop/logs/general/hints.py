"""What is known of families of logs: names of fields whose meaning the name alone does not tell.

Adding a family is adding lines here. A hint never wins against timestamps that contradict it.
"""

from dataclasses import dataclass
from typing import Final, Literal

_Role = Literal["time of a step", "rate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """What a name stands for."""

    role: _Role
    needs_unit: bool
    """Whether others use the name too, so that a number without a unit may be anything."""


_ANYBODY: Final = "many scripts"
_NAMES: Final[dict[_Role, dict[str, str]]] = {
    "time of a step": {
        "Paddle": "batch_cost avg_batch_cost",
        "detectron2": "last_time",
        _ANYBODY: "step_time iter_time batch_time step_time_s step_time_ms iter_time_ms "
        "time_per_iter time_per_step time_per_batch time/iter time/step step_ms step_s "
        "elapsed_time_per_iteration",
    },
    "rate": {"fairseq": "wps ups", "torchtitan": "tps"},
}
HINTS: Final[dict[str, Hint]] = {
    name: Hint(role=role, needs_unit=of == _ANYBODY)
    for role, families in _NAMES.items()
    for of, names in families.items()
    for name in names.split()
}
# pytorch-CycleGAN-and-pix2pix
SAMPLES: Final = frozenset([("epoch", "iters", "time", "data")])
"""First names of lines whose count, and whose time, are of samples."""
STEPS: Final = frozenset(["num_updates"])  # fairseq
"""Names of the step that look like those of a setting."""
