"""Recordings of small networks made in this process, as the probe makes them in a script."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pitstop.plan.script.planned import read_recorded
from pitstop.records.plans.script import ScriptMemory
from pitstop_probe.measurement import Settings
from pitstop_probe.step_memory.recorder import StepMemory


class Block(nn.Module):
    """A token-wise block with attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.triple = nn.Linear(width, 3 * width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.triple(self.norm(x)).chunk(3, dim=-1)
        scores = functional.softmax(query @ key.transpose(1, 2), dim=-1)
        x = x + scores @ value
        return x + self.down(functional.gelu(self.up(x)))


class Tokens(nn.Module):
    """Four blocks, recomputed where asked."""

    def __init__(self, width: int = 32, *, recompute: bool = False) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.zeros(24, width))
        self.blocks = nn.ModuleList(Block(width) for _ in range(4))
        self.head = nn.Linear(width, 50)
        self.recompute = recompute

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.place
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return self.head(x)


class Pictures(nn.Module):
    """Convolutions with batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten()),
            nn.Linear(16 * 64, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Dropping(nn.Module):
    """torch's attention with dropout, and dropout by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.triple = nn.Linear(32, 96)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.triple(x).chunk(3, dim=-1)
        seen = functional.scaled_dot_product_attention(query, key, value, dropout_p=0.1)
        return self.drop(seen)


def tokens(samples: int) -> Tensor:
    return torch.randn(samples, 24, 32)


def pictures(samples: int) -> Tensor:
    return torch.randn(samples, 3, 16, 16)


class Bystander:
    """Whoever waits for the record, and ends nothing."""

    is_alive = True

    def ends_this(self, *, is_rank: bool) -> bool:
        del is_rank
        return False


def record(
    model: nn.Module,
    batch: Callable[[], Tensor],
    *,
    autocast: bool = False,
    steps: int = 4,
    optimizer: Callable[..., Any] = torch.optim.AdamW,
) -> ScriptMemory:
    """Train a few steps under the recorder."""
    with TemporaryDirectory() as name:
        settings = Settings(name)
        settings.doctor = Bystander()  # type: ignore[assignment]  # that much of it is asked
        recorder = StepMemory(torch, settings)
        rule = optimizer(model.parameters(), lr=1e-3)
        try:
            for _ in range(steps):
                train_step(model, batch(), rule, autocast=autocast)
        finally:
            recorder.close()
        found = read_recorded(Path(name))
    assert found is not None
    return found


def train_step(model: nn.Module, batch: Tensor, rule: Any, *, autocast: bool = False) -> float:
    """Take one step; give its loss."""
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss = model(batch).float().square().mean()
    rule.zero_grad()
    loss.backward()
    rule.step()
    return loss.item()
