"""What a training step of VRT starts on a GPU, counted without one: by operation and by line.

    python benchmarks/deblur_launches.py [--kernels auto] [--lines 40]

The second step of the published network, 6x256x256, bf16, fused AdamW, on tensors that have shapes
and no numbers; the code behind fused operations runs with kernels that launch nothing. An operation
counts once, though a library may start several kernels for it or copy layouts by itself, and a
product over many tokens is two (it is split, then summed). So the sum is no count of launches; what
a change takes away from it is what it takes away from those, to a few.
"""

import argparse
import inspect
from collections import Counter
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pitstop.plan.dry_run.fake_gpu import DEVICE, fake_gpu
from pitstop.plan.dry_run.inside import is_fused, run_inside
from pitstop.workloads.deblur.model.vrt import VRT, VRT_GOPRO

SHAPE = (1, 6, 3, 256, 256)
OURS = "/src/pitstop/"
# They give memory or a name, and start nothing.
FREE = frozenset(
    {
        *("device", "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty"),
        *("new_empty_strided", "_unsafe_view", "_reshape_alias", "lift_fresh", "is_same_size"),
    }
)


class Counting(TorchDispatchMode):
    """Counts operations, those inside fused ones included, by name and by our line."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()
        self.lines: Counter[tuple[str, str]] = Counter()

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if is_fused(func):
            with self:
                return run_inside(func, args, kwargs or {})
        name = func._schema.name.partition("::")[2]
        if name not in FREE and not func.is_view:
            self.count(name)
        return func(*args, **(kwargs or {}))

    def count(self, name: str) -> None:
        """Count something that is started here."""
        self.names[name] += 1
        self.lines[name, own_line(inspect.currentframe())] += 1


def own_line(frame: FrameType | None) -> str:
    """The nearest line of ours outside the dry run."""
    while frame is not None:
        name = frame.f_code.co_filename
        if OURS in name and "dry_run" not in name:
            return f"{name.partition(OURS)[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return "autograd"


def count_step(kernels: str) -> Counting:
    """Count the second step; what the first one makes and keeps is there by then."""
    from triton.runtime.jit import JITFunction

    counting = Counting()
    with fake_gpu():
        JITFunction.run = lambda self, *_, **__: counting.count(f"triton {self.fn.__name__}")
        model = VRT(kernels=kernels, **{**VRT_GOPRO, "drop_path_rate": 0.0})  # type: ignore[arg-type]
        model.to(DEVICE).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
        clip, sharp = (torch.rand(SHAPE).to(DEVICE) for _ in range(2))

        def step() -> None:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                restored = model(clip)
            ((restored.float() - sharp).square() + 1e-9).sqrt().mean().backward()
            optimizer.step()

        step()
        counting.names.clear()
        counting.lines.clear()
        with counting:
            step()
    return counting


def main() -> None:
    """Print the counts, the most frequent first."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kernels", default="auto", choices=["auto", "fused", "reference"])
    parser.add_argument("--lines", type=int, default=40, help="of ours that start most")
    options = parser.parse_args()
    counting = count_step(options.kernels)
    for name, number in counting.names.most_common():
        print(f"{number:6} {name}")
    print(f"{counting.names.total():6} in all")
    for (name, line), number in counting.lines.most_common(options.lines):
        print(f"{number:6} {name}, {line}")


if __name__ == "__main__":
    main()
