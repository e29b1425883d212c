"""Two runs side by side as text."""

import io

from pitstop.records.comparison import Comparison, PartChange, Ratio, RunThroughput
from pitstop.report.comparison import comparison_report
from pitstop.report.terminal import make_console

BEFORE = RunThroughput(
    source="runs/a", rank=0, steps=90, step_s=0.010, run_s=0.011, samples_per_s=400.0
)
AFTER = RunThroughput(
    source="runs/\x1b[31mb", rank=0, steps=90, step_s=0.012, run_s=0.013, samples_per_s=None
)


def rendered(comparison: Comparison) -> list[str]:
    stream = io.StringIO()
    make_console(stream).print(comparison_report(comparison))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_the_result_comes_first_and_what_was_not_checked_last() -> None:
    lines = rendered(
        Comparison(
            change="slower",
            message="a step takes 1.20 times as long (99% within 1.18 to 1.22)",
            before=BEFORE,
            after=AFTER,
            step=Ratio(value=1.2, low=1.18, high=1.22),
            run=Ratio(value=1.2, low=1.1, high=1.3),
            parts=(
                PartChange(
                    part="forward",
                    before_s=0.008,
                    after_s=0.010,
                    low_s=0.0018,
                    high_s=0.0022,
                    beyond_noise=True,
                ),
                PartChange(
                    part="log",
                    before_s=0.001,
                    after_s=None,
                    low_s=None,
                    high_s=None,
                    beyond_noise=False,
                ),
                PartChange(
                    part="data",
                    before_s=0.002,
                    after_s=0.001,
                    low_s=-0.003,
                    high_s=0.001,
                    beyond_noise=False,
                ),
            ),
            same_work=("samples a step over all ranks: 4",),
            not_checked=("model", "number format"),
            notes=("one rank left no record",),
        )
    )
    assert lines[0] == "slower: a step takes 1.20 times as long (99% within 1.18 to 1.22)"
    assert lines[2] == (
        "before: runs/a, 90 steps, 10.0 ms a step (mean of windows' medians), 11.0 ms with "
        "what lies between steps, 400 samples/s"
    )
    assert lines[3].startswith("after:  runs/\\x1b[31mb, ")
    assert lines[3].endswith("samples/s not known")
    forward, log, data = lines[6:9]
    assert forward.split()[:3] == ["forward", "8.00", "ms"]
    assert forward.endswith("+1.80 ms to +2.20 ms  beyond noise")
    assert log.split() == ["log", "1.00", "ms", "not", "measured"]
    assert "-1.00 ms" in data
    assert lines[9:] == [
        "the same work: samples a step over all ranks: 4",
        "not checked: model, number format",
        "note: one rank left no record",
    ]
