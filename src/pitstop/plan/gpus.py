"""GPUs by name: what their data sheets say, for machines that are not here."""

from typing import Final

from pitstop.errors import PitstopError
from pitstop.plan.speed import Ceilings

_GIB: Final = 2**30
_SHEETS: Final[dict[str, tuple[int, float, float, float, float]]] = {
    # Memory in GiB; TFLOP/s of bf16, tf32 and fp32 without sparsity; GB/s.
    "H200": (140, 989, 494, 67, 4800),
    "H100": (80, 989, 494, 67, 3350),
    "A100-80GB": (80, 312, 156, 19.5, 2039),
    "A100-40GB": (40, 312, 156, 19.5, 1555),
    "L40S": (48, 362, 183, 91.6, 864),
    "RTX 6000 Ada": (48, 364, 182, 91.1, 960),
    "RTX A6000": (48, 155, 77.4, 38.7, 768),
    "RTX 4090": (24, 165, 82.6, 82.6, 1008),
    "RTX 3090": (24, 71, 35.6, 35.6, 936),
    "L4": (24, 121, 60, 30.3, 300),
    "T4": (16, 65, 8.1, 8.1, 320),
}


def find_gpu(name: str) -> Ceilings:
    """Give the data sheet of a GPU.

    Raises:
        PitstopError: Where there is none of that name; lists them.
    """
    wanted = _plain(name)
    found = [known for known in _SHEETS if _plain(known) == wanted]
    found = found or [known for known in _SHEETS if _plain(known).startswith(wanted)]
    if len(found) != 1:
        raise PitstopError(f"--gpu {name} is none of {', '.join(_SHEETS)}; name one of them")
    memory, bf16, tf32, fp32, bandwidth = _SHEETS[found[0]]
    return Ceilings(
        gpu=found[0],
        basis="data sheet",
        flops_per_s={"bf16": bf16 * 1e12, "tf32": tf32 * 1e12, "fp32": fp32 * 1e12},
        bytes_per_s=bandwidth * 1e9,
        gpu_bytes=memory * _GIB,
    )


def is_gpu(device: str, name: str) -> bool:
    """Whether a device, as its driver calls it, is a GPU of that name."""
    return _plain(device) == _plain(name)


def _plain(name: str) -> str:
    kept = "".join(letter for letter in name.lower() if letter.isalnum())
    return kept.removeprefix("nvidia").removeprefix("geforce")
