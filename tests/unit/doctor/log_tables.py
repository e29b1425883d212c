"""Logs made by hand: a table of windows whose every number the test chooses."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pitstop.records.logs.windows import ColumnNote, Disagreement, LogSource, WindowTable
from pitstop.records.run import Event, RankRecord, RunRecord, ScalarSeries

NAN = float("nan")
Values = Sequence[float] | float

PRINTED = {
    "step_s": ColumnNote(meaning="window mean", source="printed", formula="time"),
    "data_s": ColumnNote(meaning="window mean", source="printed", formula="data_time"),
    "samples_per_s": ColumnNote(meaning="window mean", source="printed", formula="Speed"),
    "memory_bytes": ColumnNote(meaning="total", source="printed", formula="memory"),
}


def log_record(
    step_s: Values = 0.5,
    *,
    rows: int = 40,
    steps: int = 50,
    kind: Sequence[str] | str = "train",
    clock: bool = False,
    events: Sequence[Event] = (),
    scalars: Mapping[str, Sequence[float]] | None = None,
    source: str = "train.log",
    notes: Mapping[str, ColumnNote] | None = None,
    disagreements: Sequence[Disagreement] = (),
    attempt: Values = 0.0,
    data_s: Values = NAN,
    samples_per_s: Values = NAN,
    lr: Values = NAN,
    memory_bytes: Values = NAN,
    **log: Any,
) -> RunRecord:
    """A log of `rows` records over `steps` steps each; a single value fills its column."""
    given = (step_s, kind, data_s, samples_per_s, lr, memory_bytes, attempt)
    rows = next((len(v) for v in given if not isinstance(v, (int, float, str))), rows)
    last = np.arange(1, rows + 1, dtype=np.float64) * steps
    times = np.full(rows, step_s) if isinstance(step_s, (int, float)) else np.array(step_s)
    at_s = np.cumsum(times * steps) if clock else np.full(rows, NAN)

    def column(values: Values) -> np.ndarray:
        return np.full(rows, values) if isinstance(values, (int, float)) else np.array(values)

    table = WindowTable(
        log=LogSource(
            **{
                "format": "mmcv text",
                "confidence": 0.97,
                "defined_by": "open-mmlab/mmcv",
                "disagreements": tuple(disagreements),
                **log,
            }
        ),
        kind=np.array([kind] * rows if isinstance(kind, str) else kind),
        attempt=column(attempt),
        epoch=np.full(rows, NAN),
        first_step=last - steps + 1,
        last_step=last,
        at_s=at_s,
        step_s=times.astype(float),
        printed_step_s=np.full(rows, NAN),
        data_s=column(data_s),
        samples_per_s=column(samples_per_s),
        lr=column(lr),
        memory_bytes=column(memory_bytes),
        columns=notes or PRINTED,
    )
    rank = RankRecord(
        attempts=(),
        paths=(),
        blocks=(),
        steps=None,
        events=tuple(events),
        scalars={
            name: ScalarSeries(
                step=np.arange(1, len(values) + 1, dtype=np.float64) * steps,
                value=np.array(values, float),
            )
            for name, values in (scalars or {}).items()
        },
        windows=table,
    )
    return RunRecord(source=source, ranks=(rank,))


def event(name: str, wall_s: float | None, *, step: int = 0) -> Event:
    """Something apart from the steps; None for a duration that the log does not tell."""
    return Event(
        attempt=0,
        name=name,
        step=step,
        start_us=0,
        wall_us=0 if wall_s is None else round(wall_s * 1e6),
        detail={} if wall_s is None else {"formula": "printed as eval_runtime"},
    )
