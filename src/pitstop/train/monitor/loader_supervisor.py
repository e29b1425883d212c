"""Supervision of the loader: tuning, the order for the cache, and readings."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pitstop.config.sections import LoaderSection
from pitstop.data.loader.batches import Loader
from pitstop.data.loader.tuning import LoaderTuner, TuningLimits
from pitstop.measure.host.limits import read_host_limits
from pitstop.measure.host.memory import shm_space
from pitstop.records.loader import SkippedReading
from pitstop.train.host_cache import HostCache
from pitstop.train.observers import Observer
from pitstop.train.ranks import Ranks

Notify = Callable[[Callable[[Observer], None]], None]

# Batches travel through /dev/shm, which others use as well.
_MOST_SHM_SHARE = 0.5


@dataclass(slots=True, kw_only=True)
class LoaderSupervisor:
    """Supervises the loader of a run: tuning, cache order, readings."""

    loader: Loader[Any]
    tuner: LoaderTuner | None = None
    cache: HostCache | None = None
    _reported: Counter[str] = field(init=False, default_factory=Counter)

    def after_step(self, step: int, notify: Notify) -> None:
        """Let the tuner take the step in."""
        tuner = self.tuner
        if tuner is None:
            return
        if tuner.after_step():
            self.loader.resize(workers=tuner.workers, prefetch=tuner.prefetch)
        self._report_tuning(step, tuner, notify)

    def finish(self, step: int, notify: Notify) -> None:
        """Report what was not reported yet, however the run ended."""
        self.report(step, notify)
        if self.tuner is not None:
            self.tuner.stop()
            self._report_tuning(step, self.tuner, notify)

    def _report_tuning(self, step: int, tuner: LoaderTuner, notify: Notify) -> None:
        if (reading := tuner.take_reading()) is not None:
            notify(lambda observer: observer.tuned(step, reading))

    @property
    def wants_order(self) -> bool:
        """Whether the cache wants the order of the next samples, which takes a while to list."""
        return self.cache is not None and self.cache.wants_order

    def announce_order(self) -> None:
        """Tell the cache which samples are coming."""
        assert self.cache is not None
        applied = self.loader.applied
        ahead = applied.workers * (applied.prefetch or 0) if applied.persistent else 0
        # Before the first batch nothing is under way.
        self.cache.announce_order(in_flight=ahead if self.loader.is_running else 0)

    def report(self, step: int, notify: Notify) -> None:
        """Report how batches were made since the last report, and which samples were skipped."""
        applied = self.loader.applied
        reading = self.loader.meter.take(workers=applied.workers, prefetch=applied.prefetch)
        if reading is not None:
            notify(lambda observer: observer.loaded(step, reading))
        new = self.loader.skipped - self._reported
        if new:
            self._reported = self.loader.skipped.copy()
            skipped = SkippedReading(samples=dict(new), total=self._reported.total())
            notify(lambda observer: observer.skipped(step, skipped))
        cached = None if self.cache is None else self.cache.reading()
        if cached is not None:
            notify(lambda observer: observer.cached(step, cached))


def tuner_for(section: LoaderSection, loader: Loader[Any], ranks: Ranks) -> LoaderTuner | None:
    """Have a loader tuned where the configuration says so."""
    applied = loader.applied
    if section.tune == "off" or applied.prefetch is None:
        return None
    cores = max(1, read_host_limits().cores // ranks.local_world_size)
    budget = _prefetch_budget_on_host(section)
    tuner = LoaderTuner(
        workers=applied.workers,
        prefetch=applied.prefetch,
        limits=TuningLimits(
            cores=cores, budget_bytes=None if budget is None else budget // ranks.local_world_size
        ),
        most=ranks.most,
    )
    loader.on_batch = tuner.add
    return tuner


def _prefetch_budget_on_host(section: LoaderSection) -> int | None:
    if section.prefetch_bytes is not None:
        return section.prefetch_bytes
    shm = shm_space()
    return None if shm is None else int(shm.free_bytes * _MOST_SHM_SHARE)
