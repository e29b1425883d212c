"""How batches came about: loaders, workers, their stages, tuning, and the cache."""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from pitstop.records.loader import (
    CacheReading,
    LoaderReading,
    SkippedReading,
    TuningReading,
    TuningTry,
    sum_of_stages_us,
)
from pitstop.records.script import LoaderSetup, Setup, WorkerTimes
from pitstop.records.units import bytes_text, count_text, seconds_text, share_text, us_text
from pitstop.report.page.blocks import (
    Block,
    Cell,
    Chart,
    Message,
    Section,
    Table,
    named_columns,
    number_cell,
    section_of,
    text_cell,
)
from pitstop.report.page.charts import Axes, Line, Segment, bar, legend_of, lines
from pitstop.report.page.palette import colours
from pitstop.report.page.run import RunView
from pitstop.report.page.series import shortened

_MOST_WORKERS: Final = 64


def loader_section(view: RunView) -> Section | None:
    """What it took to feed the loop."""
    blocks = (
        *_setups(view),
        *_stages(view.readings("loader", LoaderReading)),
        *_workers(view.readings("worker", WorkerTimes)),
        *_tuning(view.readings("loader_tuning", TuningReading)),
        *_skipped(view.readings("skipped", SkippedReading)),
        *_cache(view.readings("cache", CacheReading)),
    )
    return section_of("loader", "Loader and cache", blocks)


def _setups(view: RunView) -> Iterable[Block]:
    setups = view.readings("setup", Setup)
    loaders = setups[-1].loaders if setups else ()
    if loaders:
        yield Table(
            caption="Loaders as the script built them",
            columns=named_columns(
                "dataset", "workers", "prefetch", "batch", "pinned", "persistent", "batches taken"
            ),
            rows=tuple(_setup_row(loader) for loader in loaders),
            note="As seen in the process, not as settings claim.",
        )


def _setup_row(loader: LoaderSetup) -> tuple[Cell, ...]:
    name = loader.dataset if loader.trains else f"{loader.dataset} (not for training)"
    prefetch = "none" if loader.prefetch is None else str(loader.prefetch)
    batch = "not known" if loader.batch_size is None else f"{loader.batch_size:,}"
    return (
        text_cell(name),
        number_cell(str(loader.workers), loader.workers),
        number_cell(prefetch, loader.prefetch),
        number_cell(batch, loader.batch_size),
        text_cell("yes" if loader.pinned else "no"),
        text_cell("yes" if loader.persistent else "no"),
        number_cell(f"{loader.batches:,}", loader.batches),
    )


def _stages(readings: Sequence[LoaderReading]) -> Iterable[Block]:
    batches = sum(one.batches for one in readings)
    if not batches:
        return
    stages = sum_of_stages_us(readings)
    total = sum(stages.values())
    last = readings[-1]
    if total:
        shades = colours(f"stage {name}" for name in stages)
        segments = [
            Segment(
                name=name,
                share=us / total,
                colour=shades[f"stage {name}"],
                text=f"{us_text(us / batches)} a batch, {share_text(us / total)}",
            )
            for name, us in sorted(stages.items(), key=lambda item: -item[1])
        ]
        each = us_text(total / batches)
        yield Chart(
            caption=f"Making a batch, {each} on average in {_worker_text(last.workers)}",
            svg=bar("loader-stages", "Stages of making a batch", segments, height=30),
            legend=legend_of(segments, sizes=True),
            note=f"Measured over {count_text(batches, 'batch')}.",
        )
    yield _batch_table(readings, batches)


def _worker_text(workers: int) -> str:
    return "the training process" if workers == 0 else count_text(workers, "worker")


def _batch_table(readings: Sequence[LoaderReading], batches: int) -> Table:
    sums = (
        ("made, begin to end", sum(one.busy_us for one in readings)),
        ("of that on a processor", sum(one.cpu_us for one in readings)),
        ("finished, but not yet taken", sum(one.queue_us for one in readings)),
        ("waited for by the loop", sum(one.wait_us for one in readings)),
        ("of that not finished yet", sum(one.short_us for one in readings)),
    )
    largest = bytes_text(max(one.largest_bytes for one in readings))
    return Table(
        caption="A batch's way to the loop",
        columns=named_columns("what", "mean a batch", "total"),
        rows=tuple(
            (text_cell(name), number_cell(us_text(us / batches), us), number_cell(us_text(us), us))
            for name, us in sums
        ),
        note=f"Measured; {batches:,} batches, the largest of {largest}.",
    )


def _workers(workers: Sequence[WorkerTimes]) -> Iterable[Block]:
    if not workers:
        return
    rows = tuple(_worker_row(worker) for worker in workers[:_MOST_WORKERS])
    yield Table(
        caption="What each worker did",
        columns=named_columns(
            "worker", "batches", "reading, a batch", "collating, a batch", "busy", "from storage"
        ),
        rows=rows,
        note="Measured.",
        sortable=len(rows) > 1,
        left_out=len(workers) - len(rows),
    )


def _worker_row(worker: WorkerTimes) -> tuple[Cell, ...]:
    name = "the training process" if worker.worker < 0 else f"worker {worker.worker}"
    batches = max(1, worker.batches)
    busy = (worker.read_us + worker.collate_us) / worker.alive_us if worker.alive_us else None
    return (
        text_cell(name),
        number_cell(f"{worker.batches:,}", worker.batches),
        number_cell(us_text(worker.read_us / batches), worker.read_us / batches),
        number_cell(us_text(worker.collate_us / batches), worker.collate_us / batches),
        number_cell(share_text(busy), busy),
        number_cell(bytes_text(worker.read_bytes), worker.read_bytes),
    )


def _tuning(readings: Sequence[TuningReading]) -> Iterable[Block]:
    if not readings:
        return
    tuned = readings[-1]
    yield Table(
        caption=f"Loader tuned to {count_text(tuned.workers, 'worker')}, prefetch {tuned.prefetch}",
        columns=named_columns(
            "workers", "prefetch", "batches", "the loop's own time", "waited", "wait of the time"
        ),
        rows=tuple(_try_row(one) for one in tuned.tries),
        note=f"{tuned.reason}; decided after {seconds_text(tuned.spent_s)} of training. Measured.",
    )


def _try_row(one: TuningTry) -> tuple[Cell, ...]:
    return (
        number_cell(str(one.workers), one.workers),
        number_cell(str(one.prefetch), one.prefetch),
        number_cell(str(one.batches), one.batches),
        number_cell(us_text(one.own_us), one.own_us),
        number_cell(us_text(one.wait_us), one.wait_us),
        number_cell(share_text(one.wait_share), one.wait_share),
    )


def _skipped(readings: Sequence[SkippedReading]) -> Iterable[Block]:
    if readings:
        total = count_text(readings[-1].total, "read")
        yield Message(text=f"{total} of damaged samples skipped; other samples replaced them.")


def _cache(readings: Sequence[CacheReading]) -> Iterable[Block]:
    if not readings:
        return
    last = readings[-1]
    facts = (
        ("hit rate", share_text(last.hit_rate)),
        ("hits", f"{last.hits:,}"),
        ("misses", f"{last.misses:,}"),
        ("items held", f"{last.items:,}"),
        ("bytes held", bytes_text(last.used_bytes)),
        ("budget", bytes_text(last.budget_bytes)),
        ("items thrown out", f"{last.evictions:,}"),
        ("items larger than the cache", f"{last.too_large:,}"),
        ("policy", last.policy),
        ("memory", last.backing),
    )
    yield from _hit_chart(readings)
    yield Table(
        caption="The cache at the end of the run",
        columns=named_columns("what", "value"),
        rows=tuple((text_cell(name), text_cell(value)) for name, value in facts),
        note="Counted since the cache was made, over all processes of the host.",
    )


def _hit_chart(readings: Sequence[CacheReading]) -> Iterable[Chart]:
    rates = [np.nan if one.hit_rate is None else one.hit_rate for one in readings]
    series = shortened(np.arange(1.0, len(rates) + 1), np.array(rates))
    if len(series) < 2:
        return
    axes = Axes(y_text=share_text, x_text=lambda v: f"{v:.0f}", x_name="reading", top=1.0)
    drawn = [Line(name="hit rate", series=series, colour="c7")]
    yield Chart(
        caption="Hit rate of the cache since it was made",
        svg=lines("loader-hits", "Hit rate of the cache", drawn, axes, height=130),
        note="counted",
        half=True,
    )
