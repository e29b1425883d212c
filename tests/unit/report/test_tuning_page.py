"""The page of a study: a bar and a row for each change, and nothing that was not measured."""

import re
from dataclasses import replace
from pathlib import Path

from pitstop.records.tuning.study import GainRow
from pitstop.report.tuning_page import gains_plot, write_tuning_page
from tests.unit.report.test_tuning_report import FIRST, SECOND, tuning


def widths(*rows: GainRow) -> list[float]:
    return [
        float(each) for each in re.findall(r'<rect[^>]*width="([\d.]+)%"', gains_plot(rows).text)
    ]


def test_bars_are_as_long_as_the_cumulative_gains() -> None:
    third = replace(SECOND, overrides=("train.precision=bf16",), cumulative_gain=5.0)
    first, second, last = widths(FIRST, SECOND, third)
    assert abs(second / first - 2.0) < 0.01
    assert abs(last / first - 5.0) < 0.01
    assert last < 100


def test_the_page_holds_every_measured_cell_and_escapes_the_rest(tmp_path: Path) -> None:
    study = tuning(
        replace(FIRST, step_s=2.0),
        replace(SECOND, step_s=1.0, overrides=("loader.workers=<2>",), peak_device_bytes=2**30),
    )
    write_tuning_page(study, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    for cell in ("1.90x to 2.20x", "2.00x", "1.00 s", "2.00 s", "1.00 GiB", "3 steps", "b=1"):
        assert cell in text, cell
    assert "loader.workers=&lt;2&gt;" in text
    assert "<2>" not in text


def test_a_page_without_a_gain_says_so(tmp_path: Path) -> None:
    write_tuning_page(tuning(FIRST), tmp_path / "page.html")
    assert "no setting that was tried" in (tmp_path / "page.html").read_text()
