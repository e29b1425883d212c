"""The guides' table of batch, recomputation and optimizer, with memory as it is planned.

    python benchmarks/plan_table.py --output benchmarks/results/plan_table.json [--traces FOLDER]

Each network has two dry runs at batch 1: recomputed, and with everything kept. What belongs to
samples grows with their number, and optimizers differ by their state, as in `pitstop plan`. No GPU
is needed. Dry runs are kept in the folder, where one is named, and used again.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pitstop.plan.dry_run.request import Request, trace_in_child
from pitstop.plan.memory import WORKSPACE_BYTES
from pitstop.plan.table import batch_law
from pitstop.records.plans.plan import StepTrace
from pitstop.records.store import from_json, write_json
from progress import say, write

CONFIG = Path(__file__).parents[1] / "configs" / "deblur" / "opt.yaml"
GIB = 2**30
BATCHES = (1, 2, 3)
OPTIMIZERS = ("adamw", "adamw8bit")
VRT = ("model.kind=vrt", "model.drop_path=0", "loss.perceptual=null", "train.accumulate=1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What is planned: the published VRT on six frames, in bf16."""

    name: str
    overrides: tuple[str, ...]


NETWORKS = (
    Network(name="crop 256, fused", overrides=VRT),
    Network(
        name="crop 128, reference", overrides=(*VRT, "data.crop=128", "model.kernels=reference")
    ),
)


def main() -> None:
    """Plan every network, and write each as it ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--traces", type=Path)
    options = parser.parse_args()
    report: dict[str, Any] = {
        "what": "planned peak of one step of VRT 006 in GiB",
        "torch": torch.__version__,
        "networks": {},
    }
    for network in NETWORKS:
        report["networks"][network.name] = planned(network, options.traces)
        write(report, options.output)
        say(f"{network.name} is planned")


def planned(network: Network, folder: Path | None) -> dict[str, Any]:
    """Plan a network: its cells, and what its optimizers hold."""
    traces = [dry_run(network, recompute, folder) for recompute in ("full", "none")]
    return {
        "overrides": list(network.overrides),
        "parameters": traces[0].parameters,
        "optimizer_mib": {kind: traces[0].optimizer_bytes[kind] / 2**20 for kind in OPTIMIZERS},
        "cells": [
            {
                "recompute": trace.recompute,
                "batch_size": size,
                "optimizer": kind,
                "peak_gib": peak_bytes(trace, size, kind) / GIB,
            }
            for trace in traces
            for size in BATCHES
            for kind in OPTIMIZERS
        ],
    }


def peak_bytes(trace: StepTrace, batch_size: int, optimizer: str) -> int:
    """Plan another batch and optimizer from a dry run."""
    change = trace.optimizer_bytes[optimizer] - trace.owners.get("optimizer state", 0)
    return batch_law(trace, None).peak(trace, batch_size) + change + WORKSPACE_BYTES


def dry_run(network: Network, recompute: str, folder: Path | None) -> StepTrace:
    """Run a step of a network on shapes alone, or read how it went."""
    file = None if folder is None else folder / f"{network.name}, {recompute}.json"
    if file is not None and file.exists():
        return from_json(file.read_text(), StepTrace)
    overrides = (*network.overrides, f"train.recompute={recompute}")
    trace = trace_in_child(Request(config=str(CONFIG), overrides=overrides)).require()
    if file is not None:
        write_json(trace, file)
    return trace


if __name__ == "__main__":
    main()
