"""The corpus: which script is slow for what reason, and how its fixed run is started.

A slow script has one planted bottleneck that takes 40 to 70 % of its wall clock after warm-up; its
fix is another setting of the same script, or another script where the fix is more than a setting.
Every script of a pair ends with a line that gives samples/s after its own warm-up.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

FOLDER = Path(__file__).parent

Device = Literal["cpu", "cuda"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A script in two states: slow and fixed."""

    name: str
    code: str
    """Finding that must be named first."""
    slow: str
    """Script, from this folder."""
    fixed: str
    steps: int
    """Optimizer steps of either."""
    slow_args: tuple[str, ...] = ()
    fixed_args: tuple[str, ...] = ()
    ranks: int = 1
    device: Device = "cpu"

    @property
    def watched_steps(self) -> int:
        """Steps to measure: on a GPU kernels are profiled after them, before the script ends."""
        return self.steps // 2 if self.device == "cuda" else self.steps

    def command(self, *, fixed: bool) -> list[str]:
        """What a user would type."""
        script, args = (self.fixed, self.fixed_args) if fixed else (self.slow, self.slow_args)
        return command(script, args, ranks=self.ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Healthy:
    """A script that nothing holds back."""

    name: str
    script: str
    steps: int
    args: tuple[str, ...] = ()
    ranks: int = 1

    def command(self) -> list[str]:
        """What a user would type."""
        return command(self.script, self.args, ranks=self.ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fires:
    """A small script on which a rule speaks that no planted bottleneck stands for."""

    code: str
    """Finding that must be among those of the verdict, whichever comes first."""
    script: str
    """From this folder."""
    args: tuple[str, ...] = ()
    steps: int = 60
    """Steps to measure."""
    device: Device = "cpu"
    by_hand: bool = False
    """Whether the script writes its record itself, into the folder that its last word names."""
    driver: str | None = None
    """Folder with a stand-in for the GPU driver's bindings: what no script can bring about."""
    neighbours: int = 0
    """Other processes that keep a core busy each meanwhile."""
    by_counts: bool = False
    """Whether the rule counts and compares no times: it speaks on a busy machine as well."""

    def command(self) -> list[str]:
        """What a user would type."""
        return command(self.script, self.args)


def command(script: str, args: Sequence[str] = (), *, ranks: int = 1) -> list[str]:
    """Python on one script of this folder, or torchrun where there are several ranks."""
    path = str(FOLDER / script)
    if ranks == 1:
        return [sys.executable, path, *args]
    run = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")
    return [sys.executable, *run, path, *args]


def _setting(
    name: str,
    code: str,
    script: str,
    args: tuple[tuple[str, ...], tuple[str, ...]],
    steps: int,
    ranks: int = 1,
) -> Case:
    """A case whose fix is another setting of the same script."""
    slow_args, fixed_args = args
    return Case(
        name=name,
        code=code,
        slow=script,
        fixed=script,
        slow_args=slow_args,
        fixed_args=fixed_args,
        steps=steps,
        ranks=ranks,
    )


def _pair(name: str, code: str, stem: str, steps: int, ranks: int = 1) -> Case:
    """A case whose fix is another script."""
    return Case(
        name=name,
        code=code,
        slow=f"{stem}_slow.py",
        fixed=f"{stem}_fixed.py",
        steps=steps,
        ranks=ranks,
    )


SLOW: tuple[Case, ...] = (
    _setting(
        "no workers",
        "DATA001",
        "slow/images_without_workers.py",
        (("--workers", "0"), ("--workers", "4")),
        60,
    ),
    _setting(
        "one worker",
        "DATA001",
        "slow/clips_with_one_worker.py",
        (("--workers", "1"), ("--workers", "6")),
        60,
    ),
    _pair("generator", "DATA001", "slow/generator", 60),
    _setting("workers restarted", "DATA002", "slow/short_epochs.py", ((), ("--persistent",)), 96),
    _setting(
        "logging",
        "LOG001",
        "slow/log_every_step.py",
        (("--log-every", "1"), ("--log-every", "50")),
        80,
    ),
    _pair("metric in Python", "HOST001", "slow/python_metric", 80),
    _setting(
        "evaluation",
        "EVAL001",
        "slow/evaluate_often.py",
        (("--eval-every", "4"), ("--eval-every", "100")),
        100,
    ),
    _setting(
        "checkpoints",
        "CKPT001",
        "slow/save_often.py",
        (("--save-every", "4"), ("--save-every", "100")),
        100,
    ),
    _setting(
        "optimizer loop",
        "OPT001",
        "slow/optimizer_loop.py",
        (("--update", "loop"), ("--update", "fused")),
        200,
    ),
    _setting("recompute", "RECOMP001", "slow/recompute.py", (("--checkpointing",), ()), 80),
    _pair("recompile", "COMPILE001", "slow/recompile", 96),
    _pair("loss by sample", "LOSS001", "slow/hard_triplets", 200),
    _setting(
        "slow rank",
        "COMM002",
        "slow/slow_rank.py",
        (("--workers", "0"), ("--workers", "1")),
        80,
        ranks=2,
    ),
    _setting(
        "exchange in every micro-batch",
        "COMM001",
        "slow/accumulate_and_exchange.py",
        ((), ("--no-sync",)),
        50,
        ranks=2,
    ),
    _pair("exchange by hand", "COMM001", "slow/exchange_by_hand", 150, ranks=2),
)


def _on_gpu(
    name: str, code: str, scripts: tuple[str, str], fix: tuple[str, ...], steps: int
) -> Case:
    return Case(
        name=name,
        code=code,
        slow=f"gpu/{scripts[0]}.py",
        fixed=f"gpu/{scripts[1]}.py",
        fixed_args=fix,
        steps=steps,
        device="cuda",
    )


ON_GPU: tuple[Case, ...] = (
    _on_gpu(
        "launches",
        "LAUNCH001",
        ("many_small_operations", "many_small_operations"),
        ("--graph",),
        300,
    ),
    _on_gpu(
        "syncs",
        "SYNC001",
        ("activations_watched", "activations_watched"),
        ("--read-later",),
        300,
    ),
    _on_gpu("copies", "COPY001", ("copies_slow", "copies_fixed"), (), 200),
    _on_gpu("precision", "PREC001", ("products_in_fp32", "products_in_fp32"), ("--bf16",), 200),
    _on_gpu(
        "traffic",
        "TRAFFIC001",
        ("long_pointwise_chains", "long_pointwise_chains"),
        ("--compile",),
        200,
    ),
)

HEALTHY: tuple[Healthy, ...] = (
    Healthy(name="plain loop", script="healthy/plain.py", steps=100),
    Healthy(name="accumulation", script="healthy/accumulate.py", steps=60),
    Healthy(name="rare evaluation", script="healthy/evaluate_and_save.py", steps=100),
    Healthy(name="two ranks", script="healthy/two_ranks.py", steps=60, ranks=2),
)

FIRES: tuple[Fires, ...] = (
    Fires(code="DATA003", script="rules/cached.py", by_counts=True),
    Fires(code="DATA004", script="rules/too_many_workers.py", by_counts=True),
    Fires(code="BAR001", script="odd/sampler_promises_more.py", steps=1_000, by_counts=True),
    Fires(code="COMPILE002", script="rules/graph_breaks.py", by_counts=True),
    # Memory is read once a second, and a trend takes fifteen readings.
    Fires(code="MEM001", script="rules/leak.py", steps=100_000, by_counts=True),
    Fires(code="MEM002", script="rules/cached.py", args=("--of-memory", "0.6"), by_counts=True),
    Fires(code="SHARE001", script="healthy/plain.py", neighbours=os.cpu_count() or 1),
    Fires(code="CLOCK001", script="healthy/plain.py", driver="rules/driver", by_counts=True),
    Fires(code="NAN001", script="rules/diverges.py", by_counts=True),
    Fires(code="SETTING001", script="rules/idle_setting.py", by_counts=True),
    Fires(code="DEBUG001", script="rules/anomalies.py", by_counts=True),
    Fires(code="STALL001", script="rules/stall.py", args=("--at", "update"), steps=85),
    Fires(code="TIME001", script="rules/clock_by_hand.py", by_hand=True),
    Fires(code="OUTSIDE001", script="rules/clock_by_hand.py", args=("--beside",), by_hand=True),
    Fires(code="TENSOR001", script="gpu/one_sample_at_a_time.py", steps=100, device="cuda"),
    Fires(code="BATCH001", script="gpu/many_small_operations.py", steps=150, device="cuda"),
    Fires(code="MEM003", script="gpu/nearly_full.py", steps=100, device="cuda"),
)
