"""On paper: what exchanging gradients costs the three workloads on 8 to 1,024 GPUs. Estimated.

Parameters are counted in the models; step times and their parts are those of one H200 in
benchmarks/results. Rates of links are those of data sheets. Nothing here was measured on more than
one GPU.

    python -m benchmarks.communication_on_paper      # writes the result, prints tables for docs
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch

from pitstop.config.load import load_config
from pitstop.workloads.catalogue import build_task

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = ROOT / "benchmarks" / "results"
RESULT: Final = RESULTS / "communication_on_paper.json"

COUNTS: Final = (8, 16, 64, 256, 1024)
SHOWN: Final = (8, 64, 1024)
PER_HOST: Final = 8
BUCKET_BYTES: Final = 25 * 2**20
"""DDP's default: the last bucket has no computing left to hide behind."""
GRADIENT_BYTES: Final = 4
"""Weights and their gradients are float32; computing is in bf16."""
GATHERED_BYTES: Final = 2
"""FSDP gathers weights in bf16."""
EFFICIENCY: Final = 0.7
"""Of a link's rate that a collective reaches; assumed."""
WITHOUT: Final = {
    "deblur/fast": ("loss.perceptual=null",),
    "bev/mono_speed": ("data.root=null",),
    "reid/fast": ("data.root=null", "model.weights=null"),
}
"""What needs files that are not there and has no weights to train."""
NVLINK_BYTES_S: Final = 450e9
HOST_LINKS: Final = {"8 x 400 Gb/s": 400e9, "1 x 100 Gb/s": 12.5e9}


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A preset on one H200."""

    name: str
    parameters: int
    batch_size: int
    step_ms: float
    forward_ms: float
    backward_ms: float


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """One workload on some GPUs; all of it estimated."""

    workload: str
    gpus: int
    host_link: str
    ddp_gb: float
    """Sent by each GPU in one step."""
    ddp_ms: float
    ddp_exposed_ms: float
    ddp_efficiency: float
    fsdp_gb: float
    fsdp_ms: float
    fsdp_exposed_ms: float
    fsdp_efficiency: float


def parameters_of(preset: str, overrides: tuple[str, ...] = ()) -> int:
    """Count the weights that get gradients, in the model as the engine builds it."""
    config = load_config(ROOT / "configs" / f"{preset}.yaml", overrides).config
    with torch.device("meta"):
        model = build_task(config).build_model()
    return sum(weight.numel() for weight in model.parameters() if weight.requires_grad)


def workloads() -> Iterator[Workload]:
    """The fast preset of each workload, with its measured step."""
    deblur = _result("deblur_step_h200")
    row = next(row for row in deblur["rows"] if row["name"] == "fast")
    yield _workload("deblur fast", "deblur/fast", 1, row["step_ms"], row)
    bev = _result("bev_step_h200")["groups"]["best"]["members"]["mono_speed at 32"]
    yield _workload("bev mono_speed", "bev/mono_speed", 32, _median_ms(bev), bev)
    reid = _result("reid_step_h200")["presets"]["fast"]
    yield _workload("reid fast", "reid/fast", 32, _median_ms(reid), reid)


def _workload(name: str, preset: str, batch: int, step_ms: float, row: dict[str, Any]) -> Workload:
    parts = row["parts_ms"]
    return Workload(
        name=name,
        parameters=parameters_of(preset, WITHOUT.get(preset, ())),
        batch_size=batch,
        step_ms=step_ms,
        forward_ms=parts["forward"],
        backward_ms=parts["backward"],
    )


def _result(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def _median_ms(row: dict[str, Any]) -> float:
    times = sorted(block["step_ms"] for block in row["blocks"])
    return times[len(times) // 2]


def estimate(workload: Workload, gpus: int, host_link: str) -> Estimate:
    """Set volume against the slowest link: NVLink inside a host, else the host's network.

    A ring sends 2 (N-1)/N of the gradients through every GPU; as many rings as a host has network
    cards share what leaves it, so the host's whole rate counts.
    """
    rate = EFFICIENCY * (
        NVLINK_BYTES_S if gpus <= PER_HOST else min(NVLINK_BYTES_S, HOST_LINKS[host_link])
    )
    around = (gpus - 1) / gpus
    gradients = GRADIENT_BYTES * workload.parameters
    ddp = 2 * around * gradients
    ddp_ms = 1e3 * ddp / rate
    last_ms = ddp_ms * min(1.0, BUCKET_BYTES / gradients)
    ddp_exposed_ms = max(last_ms, ddp_ms - workload.backward_ms)
    gather = around * GATHERED_BYTES * workload.parameters
    scatter = around * gradients
    gather_ms, scatter_ms = 1e3 * gather / rate, 1e3 * scatter / rate
    fsdp_exposed_ms = max(0.0, gather_ms - workload.forward_ms) + max(
        0.0, gather_ms + scatter_ms - workload.backward_ms
    )
    return Estimate(
        workload=workload.name,
        gpus=gpus,
        host_link="NVLink" if gpus <= PER_HOST else host_link,
        ddp_gb=ddp / 1e9,
        ddp_ms=ddp_ms,
        ddp_exposed_ms=ddp_exposed_ms,
        ddp_efficiency=workload.step_ms / (workload.step_ms + ddp_exposed_ms),
        fsdp_gb=(2 * gather + scatter) / 1e9,
        fsdp_ms=2 * gather_ms + scatter_ms,
        fsdp_exposed_ms=fsdp_exposed_ms,
        fsdp_efficiency=workload.step_ms / (workload.step_ms + fsdp_exposed_ms),
    )


def tables(found: list[Workload], estimates: list[Estimate]) -> Iterator[str]:
    """The tables of docs/scale.md."""
    yield "| preset | parameters with gradients | batch | step on one H200 | forward | backward |"
    yield "|---|---|---|---|---|---|"
    for one in found:
        yield (
            f"| {one.name} | {one.parameters / 1e6:.1f} M | {one.batch_size} | {one.step_ms:.0f} ms"
            f" | {one.forward_ms:.0f} ms | {one.backward_ms:.0f} ms |"
        )
    yield ""
    yield (
        "| preset | GPUs | slowest link | DDP sends | takes | not hidden | of linear "
        "| FSDP sends | takes | not hidden | of linear |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for one in (each for each in estimates if each.gpus in SHOWN):
        yield (
            f"| {one.workload} | {one.gpus:,} | {one.host_link} | {one.ddp_gb:.2f} GB | "
            f"{one.ddp_ms:.1f} ms | {one.ddp_exposed_ms:.1f} ms | {one.ddp_efficiency:.0%} | "
            f"{one.fsdp_gb:.2f} GB | {one.fsdp_ms:.1f} ms | {one.fsdp_exposed_ms:.1f} ms | "
            f"{one.fsdp_efficiency:.0%} |"
        )


def main() -> None:
    """Estimate all and write the result."""
    found = list(workloads())
    estimates = [
        estimate(one, gpus, link)
        for one in found
        for link in HOST_LINKS
        for gpus in COUNTS
        if gpus > PER_HOST or link == next(iter(HOST_LINKS))
    ]
    result = {
        "what": "estimated; nothing was measured on more than one GPU",
        "hardware": "steps: NVIDIA H200; links: data sheets",
        "assumed": {
            "efficiency_of_links": EFFICIENCY,
            "nvlink_bytes_per_s": NVLINK_BYTES_S,
            "host_links_bytes_per_s": HOST_LINKS,
            "gpus_per_host": PER_HOST,
            "bucket_bytes": BUCKET_BYTES,
        },
        "workloads": [asdict(one) for one in found],
        "estimates": [asdict(one) for one in estimates],
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print("\n".join(tables(found, estimates)))


if __name__ == "__main__":
    main()
