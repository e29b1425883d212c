"""Whether VRT learns by fused kernels what it learns by the reference: 300 steps of each.

    python benchmarks/deblur_training.py --output FILE.json [--steps 300] [--orders 3]

The published depths and widths on six frames of 64x64, bf16, AdamW. All runs start from the same
weights and see the same clips, in as many orders as asked for, by reference kernels and by fused
ones. After each third of the steps clips that are never trained on are restored and their loss
taken. Held against one another: the mean of the fused runs, which must lie in the range of the
reference runs, and how far the two kinds differ in one order, beside how far orders differ.

A step is recorded as a CUDA graph and replayed, so that 300 of them take seconds; `--smoke` trains
a small network on a CPU without one, where the numbers mean nothing.
"""

import argparse
import gc
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from deblur_vrt import clips
from graphs import graph_of
from pitstop.workloads.deblur.model.vrt import VRT, VRT_GOPRO, VRT_SMALL
from progress import say, write

SIDE = 64
TRAINED, HELD_OUT = 48, 8
LEARNING_RATE = 2e-4
THIRDS = 3
KERNELS = ("reference", "fused")
Clip = tuple[Tensor, Tensor]


def main() -> None:
    """Train every run, and write after each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--orders", type=int, default=3)
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    device = torch.device("cpu" if options.smoke else "cuda")
    report: dict[str, Any] = {
        "what": f"held-out loss of VRT after each third of {options.steps} steps, bf16, 6x64x64",
        "hardware": "CPU" if options.smoke else torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "losses": {kernels: {} for kernels in KERNELS},
    }
    for order in range(options.orders):
        for kernels in KERNELS:
            losses = train(kernels, order, steps=options.steps, device=device)
            gc.collect()  # its graph holds what it used
            report["losses"][kernels][str(order)] = losses
            say(f"{kernels}, order {order}: {losses}")
            write(report, options.output)
    report["compared"] = compare(report["losses"])
    say(str(report["compared"]))
    write(report, options.output)


def train(kernels: str, order: int, *, steps: int, device: torch.device) -> list[float]:
    """Train from the common start; the held-out loss after each third of the steps."""
    smoke = device.type == "cpu"
    torch.manual_seed(0)
    settings = {**(VRT_SMALL if smoke else VRT_GOPRO), "drop_path_rate": 0.0}
    model = VRT(kernels=kernels, **settings).to(device).train()  # type: ignore[arg-type]
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, fused=not smoke, capturable=not smoke
    )
    pool = [small(device, seed, smoke=smoke) for seed in range(TRAINED + HELD_OUT)]
    trained, held_out = pool[:TRAINED], pool[TRAINED:]
    now = tuple(part.clone() for part in trained[0])

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss_of(model, now).backward()
        optimizer.step()

    run = step if smoke else recorded(step, model, optimizer)
    turns = torch.Generator().manual_seed(order)
    losses = []
    for number in range(1, steps + 1):
        chosen = trained[int(torch.randint(len(trained), (), generator=turns))]
        for place, part in zip(now, chosen, strict=True):
            place.copy_(part)
        run()
        if number % (steps // THIRDS) == 0:
            with torch.no_grad():
                losses.append(statistics.fmean(float(loss_of(model, one)) for one in held_out))
    return losses


def small(device: torch.device, seed: int, *, smoke: bool) -> Clip:
    """A clip and what it should become, of the size that is trained on."""
    clip, sharp = clips(device, smoke=smoke, seed=seed)
    return clip[..., :SIDE, :SIDE].contiguous(), sharp[..., :SIDE, :SIDE].contiguous()


def loss_of(model: nn.Module, clip: tuple[Tensor, ...]) -> Tensor:
    """Charbonnier loss in bf16."""
    with torch.autocast(clip[0].device.type, dtype=torch.bfloat16):
        restored = model(clip[0])
    return ((restored.float() - clip[1]).square() + 1e-9).sqrt().mean()


def recorded(
    step: Callable[[], None], model: nn.Module, optimizer: torch.optim.Optimizer
) -> Callable[[], object]:
    """Record a step as a CUDA graph; weights and the optimizer start as if nothing had run."""
    start = {name: value.clone() for name, value in model.state_dict().items()}
    replay = graph_of(step)
    model.load_state_dict(start)
    for state in optimizer.state.values():
        for value in state.values():
            value.zero_()
    return replay


def compare(losses: dict[str, dict[str, list[float]]]) -> list[dict[str, Any]]:
    """For each third: the range of the reference, the fused mean, and how far the two differ."""
    rows = []
    for third in range(THIRDS):
        reference = [run[third] for run in losses["reference"].values()]
        fused = [run[third] for run in losses["fused"].values()]
        mean = statistics.fmean(fused)
        apart = [abs(one - two) for one, two in zip(fused, reference, strict=True)]
        rows.append(
            {
                "third": third + 1,
                "reference_range": [min(reference), max(reference)],
                "fused": fused,
                "fused_mean": mean,
                "in_range": min(reference) <= mean <= max(reference),
                "apart_in_one_order_at_most": max(apart),
            }
        )
    return rows


if __name__ == "__main__":
    main()
