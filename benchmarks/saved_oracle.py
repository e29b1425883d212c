"""Counts what autograd saves in a script's steps, by a hook that knows nothing of pitstop.

    python benchmarks/saved_oracle.py OUT.json STEPS SCRIPT [ARGS ...]

Runs the script with one hook around all of it. When a backward pass begins, the memory behind all
tensors that autograd holds then is added up, each piece once, weights and buffers left out. After
so many steps of optimizers the most of these sums is written and the script is ended.
"""

import gc
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

_PATIENCE = 60


class Held:
    """A tensor that autograd holds."""

    alive: ClassVar[dict[int, list[int]]] = {}
    """Bytes and holders by address."""

    def __init__(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        self.tensor, self.address = tensor, storage.data_ptr()
        Held.alive.setdefault(self.address, [storage.nbytes(), 0])[1] += 1

    def __del__(self) -> None:
        entry = Held.alive[self.address]
        entry[1] -= 1
        if not entry[1]:
            del Held.alive[self.address]


def lasting() -> set[int]:
    """Addresses of all weights and buffers there are."""
    modules = [found for found in gc.get_objects() if isinstance(found, torch.nn.Module)]
    tensors = [each for module in modules for each in (*module.parameters(), *module.buffers())]
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


def main() -> None:
    """Run the script under the hook."""
    out, limit, script, *args = sys.argv[1:]
    most, steps, passes = 0, 0, 0

    def end() -> None:
        Path(out).write_text(json.dumps({"saved_bytes": most, "steps": steps, "passes": passes}))
        sys.stdout.flush()
        os._exit(0)

    def stepped(*_: Any) -> None:
        nonlocal steps
        steps += 1
        if steps >= int(limit):
            end()

    def counted(*given: Any, **named: Any) -> Any:
        nonlocal most, passes
        weights = lasting()
        held = sum(size for at, (size, _) in list(Held.alive.items()) if at not in weights)
        most, passes = max(most, held), passes + 1
        if not steps and passes > _PATIENCE:
            end()
        return backward(*given, **named)

    backward, torch.autograd.backward = torch.autograd.backward, counted
    register_optimizer_step_post_hook(stepped)
    sys.argv = [script, *args]
    sys.path[0] = str(Path(script).resolve().parent)
    with torch.autograd.graph.saved_tensors_hooks(Held, lambda held: held.tensor):
        runpy.run_path(script, run_name="__main__")
    end()


if __name__ == "__main__":
    main()
