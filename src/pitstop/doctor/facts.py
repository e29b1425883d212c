"""The facts that rules judge: a rank's run after warm-up, as shares of the wall clock.

The base of every share is the wall clock after warm-up: the counted steps, and the time outside
between them (evaluation, checkpoints, epoch boundaries). So parts of the step and cadences stand
on one scale, and all shares with ``unaccounted`` add up to one.

Of short steps only some are sampled. The parts of the others are not known, and the sampled ones
stand for them: `Facts.inside_us` is what a part took in all steps, estimated so.

On a GPU the host runs ahead of the device. There `Facts.waste` is what host time can cost at most,
and `Facts.cost` what a computing part costs; both say None where the record does not tell.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pitstop.doctor.division import division_error, gaps_of
from pitstop.doctor.outside_steps import OutsideStep, outside_steps_of
from pitstop.doctor.readings import Readings
from pitstop.doctor.sampled import Estimate, Rows, Sample, estimate, window_weights
from pitstop.doctor.stalls import Stall, settled_outside, settled_steps
from pitstop.records.run import Array, RankRecord, SpanPath, StepTable
from pitstop.records.script import HostLines, Kernels, Modules, Setup, Work
from pitstop.records.summary import RunSummary, summarise
from pitstop.records.verdict import WALL_CLOCK, Bound

# First steps compile, allocate and start workers. A tenth costs a short run little; after fifty
# steps even a slow start is over, and a long run keeps the rest.
_WARM_UP_SHARE = 0.1
_MOST_WARM_UP_STEPS = 50

# Spans are marked on the device in a quarter of the steps; fewer tell little of all of them.
_FEWEST_MARKED_STEPS = 5

# Steps of either kind from which on the difference of two kinds of steps tells something.
_FEWEST_ALIKE = 5

IDLE = "time in which the device idles"
BUSY = "time in which the device works"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceTimes:
    """The device's own clock over the counted steps that have its marks for spans."""

    steps: int
    wall_us: float
    parts_us: Mapping[str, float]
    """From a part's first mark to its last: work, and gaps in which nothing was queued."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spill:
    """Time that something outside steps adds to the steps it falls in; 0 where noise is larger."""

    us: float = 0.0
    error_us: float = 0.0
    """One standard error."""

    @property
    def most_us(self) -> float:
        """Two standard errors more."""
        return self.us + 2 * self.error_us


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recomputed:
    """What ran forward again inside backward, each period of time once."""

    host_us: float
    """Over all counted steps; an estimate as `Facts.inside_us` is."""
    device_share: float | None
    """Share of the steps that recompute, on the device's clock; None where marks do not tell."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Facts:
    """One rank, settled: what the rules look at."""

    steps: int
    """Steps after warm-up."""
    warm_up_steps: int
    first_us: float
    """When the first step after warm-up began, since the attempt did."""
    indices: Array
    """Numbers of the steps after warm-up."""
    wall_us: Array
    """Wall clock of each step after warm-up."""
    sample: Sample
    """Which of these steps were sampled: most often all, of short steps some."""
    parts_us: Mapping[str, Array]
    """Host time of each top-level part in each sampled step; zero where it was not
    opened."""
    inner_us: Mapping[SpanPath, float]
    """Host time of each part of a part, over all counted steps; an estimate as `inside_us` is."""
    recomputed: Recomputed | None
    """None where no part was named so: nothing was recomputed, or nobody saw it."""
    outside: Mapping[str, OutsideStep]
    """Time outside the counted steps, by name."""
    stalls: tuple[Stall, ...]
    """What came once and took long, the longest first; no share holds it."""
    start_up_us: int | None
    """Spent before the first counted step; None where the record does not tell."""
    device: DeviceTimes | None
    device_step_us: float | None
    """Mean of the counted steps on the device's clock, estimated from the sampled ones; None where
    it was not read."""
    samples: float | None
    """Samples of one step on this rank: the median."""
    micro_steps: float | None
    record: RankRecord
    readings: Readings
    summary: RunSummary
    """The whole run, warm-up included."""

    @property
    def about(self) -> Mapping[str, Any]:
        """What the last attempt said of itself."""
        return self.record.attempts[-1].about if self.record.attempts else {}

    @property
    def total_us(self) -> float:
        """Wall clock after warm-up: what every share is a share of."""
        return float(self.wall_us.sum()) + sum(
            outside.total_us for outside in self.outside.values()
        )

    @property
    def stalled_us(self) -> float:
        """What stalls took beyond the usual; the wall clock of the shares is without it."""
        return sum(stall.us for stall in self.stalls)

    @property
    def step_us(self) -> float:
        """Mean wall clock of a step, without time outside steps.

        By the device's clock where it was read: the host runs ahead of it at first, by as much as
        the queue holds, so its own steps are too short.
        """
        if self.device_step_us is not None:
            return self.device_step_us
        return float(self.wall_us.mean()) if self.steps else 0.0

    @property
    def steps_share(self) -> float:
        """Share of the wall clock inside steps."""
        total = self.total_us
        return float(self.wall_us.sum()) / total if total else 0.0

    @property
    def sampled(self) -> Rows:
        """Sampled steps, counted from the first after warm-up."""
        return self.sample.rows

    @property
    def sampled_wall_us(self) -> Array:
        """Wall clock of each sampled step: what its parts add up to."""
        return self.wall_us[self.sampled]

    @property
    def unaccounted_us(self) -> Array:
        """Wall clock of each sampled step that is in no part."""
        return self.sampled_wall_us - sum(self.parts_us.values(), start=np.zeros(len(self.sampled)))

    def inside_us(self, times_us: Array) -> float:
        """Give the time in all counted steps of what was timed in the sampled ones.

        Exact where all were. Else an estimate that knows how long the others took: see
        `Estimate`. Estimates of all parts add up to the wall clock as the parts do.
        """
        return self._estimate(times_us).total_us

    def mean_us(self, times_us: Array) -> float:
        """Give the mean over all counted steps of what was timed in the sampled ones."""
        return self.inside_us(times_us) / self.steps if self.steps else 0.0

    def mean_part_us(self, part: str) -> float:
        """Give the mean host time of a part; 0 where no sampled step has it."""
        found = self.parts_us.get(part)
        return 0.0 if found is None else self.mean_us(found)

    def _estimate(self, times_us: Array) -> Estimate:
        return estimate(times_us, self.sample, self.wall_us)

    @property
    def setup(self) -> Setup | None:
        """What somebody's script uses; None for a run that was not watched from outside."""
        return self.readings.last(Setup)

    @property
    def is_engine_run(self) -> bool:
        """Whether pitstop's own engine wrote it, so that its settings are the ones to change."""
        return self.readings.has("applied") and self.setup is None

    @property
    def on_gpu(self) -> bool:
        """Whether the steps ran on a device with a queue of its own."""
        setup = self.setup
        named = setup is not None and (setup.device or "").startswith("cuda")
        timed = self.device is not None or self.device_step_us is not None
        return named or timed or bool(self.readings.all(Kernels))

    def share(self, part: str) -> float | None:
        """Share of the wall clock a part took on the host; None when it was not measured."""
        times, outside = self.parts_us.get(part), self.outside.get(part)
        if (times is None and outside is None) or not self.total_us:
            return None
        inside = 0.0 if times is None else self.inside_us(times)
        return (inside + (0.0 if outside is None else outside.total_us)) / self.total_us

    @property
    def kinds_outside(self) -> npt.NDArray[np.intp]:
        """How many kinds of things outside steps fell in each step."""
        kinds = np.zeros(self.steps, dtype=np.intp)
        for outside in self.outside.values():
            kinds[list(outside.places)] += 1
        return kinds

    def spill(self, name: str) -> Spill:
        """Time by which something outside steps lengthens the steps that it falls in.

        Saving empties the caches, new workers share their pages with the loop, a new graph is
        called for the first time: such steps take longer than those with nothing outside them,
        and would not without it. Steps with other things outside them as well say nothing of
        either. Nothing where the difference is within two standard errors, nor on a GPU, where
        the host's steps tell how far it runs ahead.

        Python between the parts is no part of it: what a script does once an epoch (a figure,
        histograms of its weights) falls in the same steps, and would not go with what is named.
        """
        outside = self.outside.get(name)
        if outside is None or self.on_gpu:
            return Spill()
        kinds = self.kinds_outside
        alone = [place for place in outside.places if kinds[place] == 1]
        lengths, python_us = self._without_python(kinds)
        struck, others = lengths[alone], lengths[kinds == 0]
        struck, others = struck[~np.isnan(struck)], others[~np.isnan(others)]
        if min(len(struck), len(others)) < _FEWEST_ALIKE:
            return Spill()
        longer = float(struck.mean() - others.mean()) - python_us / len(alone)
        error = float(np.hypot(_error_of_mean(struck), _error_of_mean(others)))
        if longer <= 2 * error:
            return Spill()
        return Spill(us=longer * len(alone), error_us=error * len(alone))

    def _without_python(self, kinds: npt.NDArray[np.intp]) -> tuple[Array, float]:
        """Give the steps without the Python between their parts, NaN where that is not known.

        Where too few steps that something fell in were sampled: all steps as they are, and by how
        much the Python of all exceeds the usual one.
        """
        python = self.parts_us.get("host")
        if python is None or not len(self.sampled):
            return self.wall_us, 0.0
        is_usual = kinds[self.sampled] == 0
        if (~is_usual).sum() >= _FEWEST_ALIKE:
            lengths = np.full(self.steps, np.nan)
            lengths[self.sampled] = self.sampled_wall_us - python
            return lengths, 0.0
        usual_us = float(np.median(python[is_usual])) if is_usual.any() else 0.0
        return self.wall_us, max(0.0, self.inside_us(python) - usual_us * self.steps)

    def whole_share(self, name: str) -> float | None:
        """Share of a name outside steps, with what it adds to the steps around it."""
        share = self.share(name)
        return None if share is None else min(1.0, share + self.spill(name).us / self.total_us)

    def most_share(self, name: str) -> float | None:
        """The most that `whole_share` can be: two standard errors more."""
        share, spill = self.share(name), self.spill(name)
        return None if share is None else min(1.0, share + spill.most_us / self.total_us)

    def share_error(self, part: str) -> float:
        """Standard error of a part's share, by the steps and by what gaps were divided by."""
        return float(np.hypot(self.steps_error(part), self.division_error(part)))

    def division_error(self, part: str) -> float:
        """Standard error of a part's share by the stack samples that divided gaps; 0 without.

        A gap is at most as long as the parts that it was divided into.
        """
        errors = [
            min(1.0, sum(self.share(name) or 0.0 for name in gap.shares))
            * division_error(gap, part, self.parts_us)
            for gap in gaps_of(part, self.readings.last(HostLines))
        ]
        return float(np.sqrt(np.square(errors).sum()))

    def steps_error(self, part: str) -> float:
        """Standard error of a part's share: it falls unevenly, and few steps may be sampled."""
        times, total = self.parts_us.get(part), self.total_us
        if times is None or not total:
            return 0.0
        return self._estimate(times).error_us / total

    def shares(self) -> dict[str, float]:
        """Share of every part, of time outside steps and of the rest; they add up to one.

        Where no step was sampled, time outside steps is all that is known.
        """
        total = self.total_us
        if not total:
            return {}
        names = (*self.parts_us, *(name for name in self.outside if name not in self.parts_us))
        shares = {name: share for name in names if (share := self.share(name)) is not None}
        if len(self.sampled):
            shares["unaccounted"] = self.inside_us(self.unaccounted_us) / total
        return shares

    def busy_share(self) -> float | None:
        """Share of the wall clock in which the device computed; None where it was not sampled."""
        found = [kernels.busy_us for kernels in self.readings.all(Kernels) if kernels.busy_us >= 0]
        if not found or not self.step_us:
            return None
        return min(1.0, float(np.median(found)) / self.step_us) * self.steps_share

    def idle_share(self) -> float | None:
        """Share of the wall clock, inside steps, in which the device did nothing."""
        busy = self.busy_share()
        return None if busy is None else max(0.0, self.steps_share - busy)

    def device_share(self, part: str) -> float | None:
        """Share of the wall clock between a part's marks on the device; None without marks."""
        if self.device is None or part not in self.device.parts_us or not self.device.wall_us:
            return None
        inside = self.device.parts_us[part] / self.device.wall_us
        return min(1.0, inside) * self.steps_share

    def cost(self, part: str) -> Bound | None:
        """Bound what a computing part costs: the device's time on a GPU, else the host's."""
        if not self.on_gpu:
            share = self.share(part)
            error = self.share_error(part)
            return None if share is None else Bound(part=part, share=share, error=error)
        share = self.device_share(part)
        return None if share is None else self.of_busy(part, share)

    def waste(self, part: str, share: float | None = None) -> Bound | None:
        """Bound what the run gains when the host no longer spends its time on a part.

        Without a GPU that is the time itself. With one it is the device's idle time inside the
        part, and never more than it idles in all.

        Args:
            part: Name of the part.
            share: Share of the wall clock to judge, where it is not the whole part.
        """
        whole = self.share(part)
        asked = whole if share is None else share
        if asked is None:
            return None
        error = self.share_error(part)
        if not self.on_gpu:
            return Bound(part=part, share=min(1.0, asked), error=error)
        idle, inside = self.idle_share(), self.device_share(part)
        if idle is not None:
            return replace(self.of_idle(part, asked), error=error)
        if inside is None:
            return None
        shown = inside if not whole else inside * min(1.0, asked / whole)
        return Bound(part=part, share=min(asked, shown), error=error)

    def of_idle(self, part: str, share: float) -> Bound:
        """Bound by the device's idle time."""
        idle = self.idle_share()
        if idle is None:
            return Bound(part=part, share=min(1.0, share))
        return Bound(part=part, share=min(share, idle), pool=IDLE, pool_share=idle)

    def of_busy(self, part: str, share: float) -> Bound:
        """Bound by the device's working time."""
        busy = self.busy_share()
        if busy is None:
            return Bound(part=part, share=min(1.0, share), pool=WALL_CLOCK)
        return Bound(part=part, share=min(share, busy), pool=BUSY, pool_share=busy)


def facts_of(rank: RankRecord, *, least_warm_up: int = 0) -> Facts:
    """Leave out warm-up and lay the top-level parts side by side.

    Steps that a profiler or a counter slowed down are left out as well. Of steps whose rows have
    no spans (they were not sampled, or the byte budget ran out) the parts are not known.
    """
    assert rank.steps is not None, "rules need single steps; read the run with its steps"
    table = rank.steps
    readings = Readings(rank.readings)
    top = [number for number, path in enumerate(table.paths) if len(path) == 1]
    counted = np.flatnonzero(~np.isin(table.index, list(_slowed_steps(readings))))
    warm_up = max(least_warm_up, _warm_up_steps(rank, table.index[counted]))
    rows = counted[warm_up:]
    sampled = _with_parts(table, rows, top)
    top = top if len(sampled) else []  # what was not sampled is missing, not zero
    table, stalls = settled_steps(_without_walls_of_others(table), rows, sampled, top)
    host = np.nan_to_num(table.host_us[rows[sampled]], nan=0.0)
    sample = Sample(rows=sampled, weights=window_weights(sampled, len(rows)))
    outside, start_up_us = outside_steps_of(rank, rows)
    outside, stalls_outside = settled_outside(outside, table.wall_us[rows], table.index[rows])
    plain = Facts(
        steps=len(rows),
        warm_up_steps=warm_up,
        first_us=float(table.start_us[rows[0]]) if len(rows) else 0.0,
        indices=table.index[rows],
        wall_us=table.wall_us[rows],
        sample=sample,
        parts_us={table.paths[number][0]: host[:, number] for number in top},
        inner_us={},
        recomputed=None,
        outside=outside,
        stalls=tuple(sorted((*stalls, *stalls_outside), key=lambda stall: -stall.us)),
        start_up_us=start_up_us,
        device=_device_times(table, rows, top),
        device_step_us=_device_step_us(table, rows, sample),
        samples=_median(table.samples[rows]),
        micro_steps=_median(table.micro_steps[rows]),
        record=rank,
        readings=readings,
        summary=summarise(rank),
    )
    plain = replace(plain, sample=_sound(plain))
    inner = {path: number for number, path in enumerate(table.paths) if len(path) == 2}
    inner_us = {path: plain.inside_us(host[:, number]) for path, number in inner.items()}
    return replace(plain, inner_us=inner_us, recomputed=_recomputed(plain, table, rows))


def _sound(facts: Facts) -> Sample:
    """Do without a line where it would have some part take less than no time."""
    every = (*facts.parts_us.values(), facts.unaccounted_us)
    below = any(facts.inside_us(times_us) < 0 for times_us in every)
    return replace(facts.sample, in_proportion=below)


def _warm_up_steps(rank: RankRecord, indices: Array) -> int:
    """Count the steps to leave out: a tenth, or as many as the writer said it needed itself."""
    share = min(_MOST_WARM_UP_STEPS, int(len(indices) * _WARM_UP_SHARE))
    said = rank.attempts[0].about.get("warm_up_steps") if rank.attempts else None
    if not isinstance(said, int):
        return share
    return max(share, int(np.sum(indices < said)))


def _slowed_steps(readings: Readings) -> set[int]:
    slowed = {kernels.step for kernels in readings.all(Kernels)}
    slowed |= {work.step for work in readings.all(Work)}
    return slowed | {modules.step for modules in readings.all(Modules)}


def _with_parts(table: StepTable, rows: Rows, top: list[int]) -> Rows:
    """Say at which of some rows there are parts; at all where the record has none whatever."""
    if not top:
        return np.arange(len(rows))
    return np.flatnonzero(~np.isnan(table.host_us[rows][:, top]).all(axis=1))


def _without_walls_of_others(table: StepTable) -> StepTable:
    """Leave out the device's clock in steps that something outside them fell into.

    An evaluation, a new pass, the probe handing steps over: the host knows when these began and
    ended. On the device only what was marked does, so such steps are too long by its clock. Of
    steps of half a second and more each has something; there it is little, and they stay.
    """
    walls = np.where(table.outside_us > 0, np.nan, table.device_wall_us)
    if (~np.isnan(walls)).sum() < _FEWEST_MARKED_STEPS:
        return table
    return replace(table, device_wall_us=walls)


def _device_times(table: StepTable, rows: Rows, top: list[int]) -> DeviceTimes | None:
    if not top or not len(rows):
        return None
    marks = table.device_us[rows][:, top]
    walls = table.device_wall_us[rows]
    marked = ~np.isnan(marks).all(axis=1) & (walls > 0)
    if marked.sum() < _FEWEST_MARKED_STEPS:
        return None
    sums = np.nansum(marks[marked], axis=0)
    return DeviceTimes(
        steps=int(marked.sum()),
        wall_us=float(walls[marked].sum()),
        parts_us={table.paths[number][0]: float(us) for number, us in zip(top, sums, strict=True)},
    )


def _recomputed(facts: Facts, table: StepTable, rows: Rows) -> Recomputed | None:
    columns = [number for number, path in enumerate(table.paths) if _is_outermost_again(path)]
    if not columns:
        return None
    host = table.host_us[rows][:, columns]
    seen = np.nan_to_num(host[facts.sampled], nan=0.0).sum(axis=1)
    marks, walls = table.device_us[rows][:, columns], table.device_wall_us[rows]
    # A step tells where it ran something again, and all that it ran again has its marks.
    known = (~np.isnan(host)).any(axis=1) & (walls > 0)
    known &= ~(np.isnan(marks) & ~np.isnan(host)).any(axis=1)
    share = None
    if known.sum() >= _FEWEST_MARKED_STEPS:
        share = min(1.0, float(np.nansum(marks[known]) / walls[known].sum()))
    return Recomputed(host_us=facts.inside_us(seen), device_share=share)


def _is_outermost_again(path: SpanPath) -> bool:
    """Whether a part of backward runs forward again, and none of those around it does."""
    again = [name == "recompute" or name.startswith("recompute ") for name in path]
    return path[0] == "backward" and again[-1] and not any(again[:-1])


def _error_of_mean(values: Array) -> float:
    return float(values.std(ddof=1)) / float(np.sqrt(len(values)))


def _device_step_us(table: StepTable, rows: Rows, sample: Sample) -> float | None:
    """Estimate a step on the device's clock: the host's of all steps, by how both differ in some.

    Sampling lengthens a step in which the host waits often, by a fifth where it waits sixty times;
    steps that were not sampled have no times of the device.
    """
    device, host = (walls[rows[sample.rows]] for walls in (table.device_wall_us, table.wall_us))
    known = ~np.isnan(device)
    if known.sum() < _FEWEST_MARKED_STEPS:
        return None
    weights = sample.weights[known]
    sampled_us = float(np.average(host[known], weights=weights))
    if not sampled_us:
        return None
    ratio = float(np.average(device[known], weights=weights)) / sampled_us
    return ratio * float(table.wall_us[rows].mean())


def _median(values: Array) -> float | None:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else None
