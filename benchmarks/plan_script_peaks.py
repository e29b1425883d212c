"""Peaks that `pitstop plan -- CMD` estimates against dry runs of the same networks.

    python -m benchmarks.plan_script_peaks --output RESULTS.json

A dry run enters every piece of memory of a step on a GPU that is not there, and was within 0.5 % of
what a GPU then held (docs/accuracy.md). So it stands for the truth here: of each network it is run
as it is, at twice the batch, in bf16, and with its blocks recomputed. A script that trains the same
network is recorded once, on the processor, and the same are predicted from that. Both update in
one kernel: a dry run of a `build()` does, so the script is made to.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pitstop.measure.script.launch import record_memory
from pitstop.plan.dry_run.request import Request, trace_in_child
from pitstop.plan.script.batch import find_batch
from pitstop.plan.script.choices import ScriptChoices
from pitstop.plan.script.planned import largest_step, read_recorded

ROOT = Path(__file__).parents[1]
TRAIN = """
import sys, torch
from benchmarks import plan_script_peaks as networks

torch.set_num_threads(1)
model, batch = getattr(networks, sys.argv[1])()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
for _ in range(5):
    loss = model(*batch)["loss"]
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

Built = tuple[nn.Module, tuple[Tensor, ...]]


class Blocks(nn.Module):
    """Calls modules one after the other; recomputes each where asked."""

    def __init__(self, *blocks: nn.Module, recompute: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.recompute = recompute

    def forward(self, x: Tensor) -> Tensor:
        """Go through all."""
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return x


class Attention(nn.Module):
    """A block of a language model."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.triple, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attend, then go wide and back."""
        sides = (*x.shape[:2], self.heads, -1)
        query, key, value = (
            part.view(sides).transpose(1, 2) for part in self.triple(self.norm(x)).chunk(3, -1)
        )
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(x.shape))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Language(nn.Module):
    """Next-token prediction."""

    def __init__(self, *, recompute: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(8192, 256)
        self.blocks = Blocks(*(Attention(256, 4) for _ in range(6)), recompute=recompute)
        self.norm, self.head = nn.LayerNorm(256), nn.Linear(256, 8192, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Give the loss."""
        scores = self.head(self.norm(self.blocks(self.table(x))))
        return {"loss": functional.cross_entropy(scores.flatten(0, 1), y.flatten())}


class Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        """Add what two convolutions find."""
        inner = functional.relu(self.norm(self.one(x)))
        return functional.relu(x + self.norm2(self.two(inner)))


class Classifier(nn.Module):
    """Pictures into classes."""

    def __init__(self, *, recompute: bool) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 3, padding=1)
        self.blocks = Blocks(*(Residual(64) for _ in range(6)), recompute=recompute)
        self.head = nn.Linear(64, 100)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Give the loss."""
        scores = self.head(self.blocks(self.stem(x)).mean((2, 3)))
        return {"loss": functional.cross_entropy(scores, y)}


class Wide(nn.Module):
    """Mostly weights."""

    def __init__(self, *, recompute: bool) -> None:
        super().__init__()
        layers = (nn.Sequential(nn.Linear(2048, 2048), nn.GELU()) for _ in range(6))
        self.blocks = Blocks(*layers, recompute=recompute)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Give the loss."""
        return {"loss": functional.mse_loss(self.blocks(x), y)}


class Enlarger(nn.Module):
    """Pictures into larger ones."""

    def __init__(self, *, recompute: bool) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 48, 3, padding=1)
        self.blocks = Blocks(*(Plain(48) for _ in range(5)), recompute=recompute)
        self.out = nn.Conv2d(48, 12, 3, padding=1)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Give the loss."""
        picture = functional.pixel_shuffle(self.out(self.blocks(self.stem(x))), 2)
        return {"loss": functional.l1_loss(picture, y)}


class Plain(nn.Module):
    """Two convolutions without norms."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Add what two convolutions find."""
        return x + self.two(functional.leaky_relu(self.one(x), 0.1))


def _language(*, recompute: bool) -> Built:
    tokens = torch.randint(8192, (2, 4, 128))
    return Language(recompute=recompute), (tokens[0], tokens[1])


def _classifier(*, recompute: bool) -> Built:
    pictures, classes = torch.randn(6, 3, 48, 48), torch.randint(100, (6,))
    return Classifier(recompute=recompute), (pictures, classes)


def _wide(*, recompute: bool) -> Built:
    return Wide(recompute=recompute), (torch.randn(6, 2048), torch.randn(6, 2048))


def _enlarger(*, recompute: bool) -> Built:
    return Enlarger(recompute=recompute), (torch.randn(3, 3, 64, 64), torch.randn(3, 3, 128, 128))


def language() -> Built:
    """Keep everything."""
    return _language(recompute=False)


def language_again() -> Built:
    """Recompute blocks."""
    return _language(recompute=True)


def classifier() -> Built:
    """Keep everything."""
    return _classifier(recompute=False)


def classifier_again() -> Built:
    """Recompute blocks."""
    return _classifier(recompute=True)


def wide() -> Built:
    """Keep everything."""
    return _wide(recompute=False)


def wide_again() -> Built:
    """Recompute blocks."""
    return _wide(recompute=True)


def enlarger() -> Built:
    """Keep everything."""
    return _enlarger(recompute=False)


def enlarger_again() -> Built:
    """Recompute blocks."""
    return _enlarger(recompute=True)


NETWORKS: tuple[Callable[[], Built], ...] = (language, classifier, wide, enlarger)


def main() -> None:
    """Compare all networks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    rows = [row for build in NETWORKS for row in compared(build.__name__)]
    for row in rows:
        print(json.dumps(row))
    errors = [row["error"] for row in rows]
    report = {
        "what": "peak of a step, estimated from a recorded script and by a dry run",
        "hardware": "2-core AMD EPYC",
        "torch": torch.__version__,
        "summary": {
            "mean_absolute": sum(map(abs, errors)) / len(errors),
            "lowest": min(errors),
            "highest": max(errors),
        },
        "rows": rows,
    }
    options.output.write_text(json.dumps(report, indent=2) + "\n")
    print(report["summary"])


def compared(name: str) -> list[dict[str, Any]]:
    """Set the four choices of a network beside their dry runs."""
    choices = recorded(name)
    own = choices.own
    batch = own.batch_size
    assert batch is not None
    asked = {
        "as it is": (own, Request(build=built(name))),
        "twice the batch": (
            replace(own, batch_size=2 * batch),
            Request(build=built(name), batch_size=2 * batch),
        ),
        "bf16": (replace(own, precision="bf16"), Request(build=built(name), precision="bf16")),
        "recomputed": (
            replace(own, recompute="full"),
            Request(build=built(f"{name}_again")),
        ),
        "sgd": (replace(own, optimizer="sgd"), Request(build=built(name), optimizer="sgd")),
    }
    rows = []
    for way, (settings, request) in asked.items():
        trace = trace_in_child(replace(request, folder=str(ROOT))).require()
        estimated = choices.peak_bytes(settings)
        rows.append(
            {
                "network": name,
                "way": way,
                "estimated_bytes": estimated,
                "dry_run_bytes": trace.peak_bytes,
                "error": estimated / trace.peak_bytes - 1,
                "saved_error": choices.peak(settings).most_saved_bytes / trace.saved_bytes - 1,
            }
        )
    return rows


def built(name: str) -> str:
    """Name a function as the command line does."""
    return f"benchmarks.plan_script_peaks:{name}"


def recorded(name: str) -> ScriptChoices:
    """Record a script that trains a network."""
    os.environ["PYTHONPATH"] = f"{ROOT}:{ROOT / 'src'}"
    with tempfile.TemporaryDirectory(prefix="plan-peaks-") as folder:
        record_memory([sys.executable, "-c", TRAIN, name], Path(folder))
        memory = read_recorded(Path(folder))
    if memory is None:
        raise subprocess.SubprocessError(f"{name} was not recorded")
    step = largest_step(memory)
    return ScriptChoices(memory, step, find_batch(memory, step, None))


if __name__ == "__main__":
    main()
