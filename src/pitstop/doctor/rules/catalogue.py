"""Every rule and every code the doctor knows. Rules are functions: facts to a finding, or none.

A rule abstains (None) where its facts are missing: what was not measured is not judged. Each
family has a file; this one lists them, and names what each code stands for.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pitstop.doctor.facts import Facts
from pitstop.doctor.ranks.together import Ranks
from pitstop.doctor.rules import cadence, compute, data, device, machine, memory, ranks, run, stall
from pitstop.records.verdict import Finding

Rule = Callable[[Facts], Finding | None]
RankRule = Callable[[Ranks], Finding | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a code stands for; docs/findings has a page for each."""

    code: str
    name: str
    """What a run is called whose primary bottleneck this is."""
    is_specific: bool = False
    """Whether it explains a general finding on the same part, and so comes before it."""


CATALOGUE: Final[tuple[Entry, ...]] = (
    Entry(code="DATA001", name="input-bound"),
    Entry(code="DATA002", name="stalled at epoch boundaries", is_specific=True),
    Entry(code="DATA003", name="cache below its possible hit rate", is_specific=True),
    Entry(code="DATA004", name="more workers than cores"),
    Entry(code="BAR001", name="progress bar total wrong"),
    Entry(code="COPY001", name="copy-bound"),
    Entry(code="LAUNCH001", name="launch-bound"),
    Entry(code="SYNC001", name="sync-bound"),
    Entry(code="TRAFFIC001", name="memory-traffic-bound"),
    Entry(code="COMM001", name="communication-bound"),
    Entry(code="COMM002", name="straggler rank", is_specific=True),
    Entry(code="OPT001", name="optimizer-bound"),
    Entry(code="RECOMP001", name="recomputing activations"),
    Entry(code="EVAL001", name="evaluating too often"),
    Entry(code="CKPT001", name="checkpointing too often"),
    Entry(code="LOG001", name="logging-bound"),
    Entry(code="HOST001", name="host-bound (Python)"),
    Entry(code="LOSS001", name="loss-bound"),
    Entry(code="MEM001", name="host memory grows"),
    Entry(code="MEM002", name="cache too large"),
    Entry(code="MEM003", name="device memory fragmented"),
    Entry(code="SHARE001", name="device or host shared"),
    Entry(code="COMPILE001", name="recompiling"),
    Entry(code="COMPILE002", name="graph breaks"),
    Entry(code="PREC001", name="FP32 arithmetic"),
    Entry(code="TENSOR001", name="tensor cores idle", is_specific=True),
    Entry(code="BATCH001", name="batch too small"),
    Entry(code="CLOCK001", name="clocks throttled"),
    Entry(code="NAN001", name="loss not finite"),
    Entry(code="SETTING001", name="setting without effect"),
    Entry(code="DEBUG001", name="debugging left on"),
    Entry(code="TIME001", name="not measured"),
    Entry(code="STALL001", name="stalled once"),
    Entry(code="OUTSIDE001", name="busy outside steps"),
)

ENTRIES: Final[Mapping[str, Entry]] = {entry.code: entry for entry in CATALOGUE}

RULES: Final[tuple[Rule, ...]] = (
    data.data_wait,
    data.epoch_stalls,
    data.hit_rate,
    data.too_many_workers,
    data.announced_length,
    device.copy_bound,
    device.launch_bound,
    device.sync_bound,
    device.memory_traffic,
    device.precision,
    device.tensor_cores,
    device.small_batch,
    compute.optimizer_bound,
    compute.loss_bound,
    compute.recompute_cost,
    compute.recompilation,
    compute.graph_breaks,
    cadence.evaluation,
    cadence.checkpoint,
    cadence.logging,
    cadence.host_work,
    memory.host_growth,
    memory.large_cache,
    memory.device_memory,
    machine.other_jobs,
    machine.held_clocks,
    run.non_finite,
    run.without_effect,
    run.debugging_left_on,
    stall.stall,
    cadence.time_outside_steps,
    cadence.unaccounted_time,
)

RANK_RULES: Final[tuple[RankRule, ...]] = (ranks.straggler, ranks.communication)
