"""A training run as it goes: a bar on a terminal, plain lines anywhere else."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from pitstop.records.host.memory import MemoryReading
from pitstop.records.loader import CacheReading, SkippedReading, TuningReading
from pitstop.records.targets import TargetResult
from pitstop.records.units import bytes_text, count_text, digits, seconds_text, share_text, us_text
from pitstop.train.observers import Observer, RunStart, Status
from pitstop.train.throughput import Throughput

_MOST_NAMED = 5
_OUTCOMES = {True: "target reached", False: "target missed", None: "target not judged"}


class ProgressLines(Observer):
    """Tells a run's story in lines; on a terminal the latest state is a bar below them."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._total_steps = 0
        self._world_size = 1
        self._loss: float | None = None
        self._skipped: Counter[str] = Counter()
        self._cache: CacheReading | None = None
        self._memory: MemoryReading | None = None
        self._bar: Progress | None = None

    def started(self, start: RunStart) -> None:
        """Say what runs, and what was decided."""
        self._total_steps = start.total_steps
        self._world_size = start.world_size
        steps = f"steps {start.first_step} to {start.total_steps}"
        self._say(f"{start.name}: {steps}, effective batch {start.effective_batch}, {start.folder}")
        for message in start.messages:
            self._say(f"  {message}")
        if self._console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(None))
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._bar.add_task("", total=start.total_steps, completed=start.first_step)
            self._bar.start()

    def values(self, step: int, values: Mapping[str, float]) -> None:
        """Remember the loss for the next line."""
        self._loss = values.get("loss", self._loss)

    def progress(self, step: int, throughput: Throughput) -> None:
        """Move the bar, or print a line."""
        text = self._progress_text(step, throughput)
        if self._bar is None:
            self._say(text)
        else:
            self._bar.update(self._bar.task_ids[0], completed=step, description=text)

    def memory(self, step: int, reading: MemoryReading, warnings: Sequence[str]) -> None:
        """Say where memory stands, and what is wrong with it."""
        self._memory = reading
        self._say(f"step {step}: memory {memory_text(reading)}")
        for warning in warnings:
            self._say(f"warning: {warning}")

    def tuned(self, step: int, reading: TuningReading) -> None:
        """Say what the loader was tuned to, and by what."""
        self._say(f"step {step}: {tuning_text(reading)}")

    def skipped(self, step: int, reading: SkippedReading) -> None:
        """Name the samples that were not met before; all are named again at the end."""
        for sample in reading.samples:
            if sample not in self._skipped:
                self._say(f"warning: {sample}; another sample replaces it")
        self._skipped.update(reading.samples)

    def cached(self, step: int, reading: CacheReading) -> None:
        """Remember where the cache stands, for the end."""
        self._cache = reading

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        """Print the metrics."""
        # Metrics of many things, such as iou/car, are the record's: a line cannot hold them.
        whole = {name: value for name, value in metrics.items() if "/" not in name}
        numbers = ", ".join(f"{name} {digits(value)}" for name, value in whole.items())
        self._say(f"step {step}: evaluated, {numbers}")

    def saved(self, step: int, path: Path) -> None:
        """Say that there is something to go on from."""
        self._say(f"step {step}: checkpoint in {path}")

    def warned(self, step: int, kind: str, text: str) -> None:
        """Pass on what a reader must know."""
        self._say(f"warning: {text}")

    def ended(self, step: int, status: Status, reason: str) -> None:
        """Close the bar and say how it ended."""
        if self._bar is not None:
            self._bar.stop()
        if self._cache is not None:
            self._say(cache_text(self._cache))
        if self._skipped:
            self._say(f"warning: {skipped_text(self._skipped)}")
        self._say(f"{status} at step {step}" + (f": {reason}" if reason else ""))

    def _progress_text(self, step: int, throughput: Throughput) -> str:
        loss = "not read yet" if self._loss is None else digits(self._loss)
        rate = "not known" if throughput.samples_per_s is None else digits(throughput.samples_per_s)
        each = "" if self._world_size == 1 else f" on each of {self._world_size} ranks"
        left = None if throughput.step_s is None else (self._total_steps - step) * throughput.step_s
        return (
            f"step {step}/{self._total_steps}  loss {loss}  {rate} samples/s{each}  "
            f"data wait {share_text(throughput.data_share)}{self._state_text()}  "
            f"{seconds_text(left)} left"
        )

    def _state_text(self) -> str:
        """Give the cache's hit rate and the devices' memory, as of their last readings."""
        pieces = []
        if self._cache is not None:
            pieces.append(f"hit rate {share_text(self._cache.hit_rate)}")
        if self._memory is not None:
            pieces += [
                f"{device.device} peak {bytes_text(device.peak_reserved_bytes)}"
                for device in self._memory.devices
            ]
        return "".join(f"  {piece}" for piece in pieces)

    def _say(self, text: str) -> None:
        try:
            self._console.print(text, soft_wrap=True)
        except (OSError, SystemExit):
            # The reader of a pipe left, or the terminal is gone: training goes on without them.
            self._console.quiet = True


def tuning_text(reading: TuningReading) -> str:
    """What the loader was tuned to, in one line, with the figures that decided."""
    settings = count_text(len(reading.tries), "setting")
    text = (
        f"loader tuned to {count_text(reading.workers, 'worker')} with {reading.prefetch} batches "
        f"ahead each ({settings} tried in {seconds_text(reading.spent_s)}): {reading.reason}"
    )
    chosen = reading.chosen
    if chosen is None:
        return text
    first = share_text(reading.tries[0].wait_share)
    return (
        f"{text}; a batch takes {us_text(chosen.busy_us)} to make and "
        f"{us_text(chosen.own_us)} to train on, waiting for data {first} at first, "
        f"{share_text(chosen.wait_share)} now"
    )


def cache_text(reading: CacheReading) -> str:
    """What the cache held and gave, in one line."""
    lookups = f"{reading.hits:,} of {reading.hits + reading.misses:,} lookups"
    return (
        f"cache ({reading.policy}): {count_text(reading.items, 'item')} in "
        f"{bytes_text(reading.used_bytes)} of {bytes_text(reading.budget_bytes)}, hit rate "
        f"{share_text(reading.hit_rate)} ({lookups})"
    )


def skipped_text(skipped: Counter[str]) -> str:
    """Which samples were passed over in a run, and how often."""
    samples = count_text(len(skipped), "damaged sample")
    often = count_text(skipped.total(), "time")
    worst = "; ".join(f"{name} ({times}x)" for name, times in skipped.most_common(_MOST_NAMED))
    more = "; ..." if len(skipped) > _MOST_NAMED else ""
    return f"{samples} skipped, {often} in all: {worst}{more}"


def target_lines(results: Sequence[TargetResult]) -> list[str]:
    """One line for each target: what was asked for, what came, whether it is enough."""
    return [
        f"{_OUTCOMES[result.passed]}: {result.key} {'at most' if result.at_most else 'at least'} "
        f"{_target_text(result, result.target)}, measured {_target_text(result, result.value)}"
        for result in results
    ]


def _target_text(result: TargetResult, value: float | None) -> str:
    if value is None:
        return "nothing"
    if result.key.endswith("_ms"):
        return seconds_text(value / 1e3)
    return digits(value) if result.key.endswith("_per_s") else share_text(value)


def memory_text(reading: MemoryReading) -> str:
    """Where memory stands, in one line: process tree, host, each device."""
    pieces = []
    if (tree := reading.tree) is not None:
        size = bytes_text(tree.tree_bytes)
        pieces.append(f"{size} in {tree.processes} own processes ({tree.basis})")
    if reading.host_total_bytes is not None and reading.host_available_bytes is not None:
        used = reading.host_total_bytes - reading.host_available_bytes
        pieces.append(f"host {bytes_text(used)} of {bytes_text(reading.host_total_bytes)}")
    pieces += [
        f"{device.device} {bytes_text(device.allocated_bytes)} allocated, "
        f"{bytes_text(device.reserved_bytes)} reserved"
        for device in reading.devices
    ]
    return "; ".join(pieces) or "not measured"
