"""What is said about a bound that was put to the test."""

import pytest
from rich.console import Console

from pitstop.records.verdict import Ablation
from pitstop.report.script import ablation_report


def said(**values: object) -> str:
    test = Ablation(part="data", **values)  # type: ignore[arg-type]
    console = Console(width=200)
    with console.capture() as capture:
        console.print(ablation_report(test))
    return capture.get()


@pytest.mark.parametrize(
    ("measured", "low", "end"),
    [
        (2.5, 2.4, "predicted: up to 2.76x\n"),
        (2.87, 2.7, "predicted: up to 2.76x, exceeded within noise\n"),
        (2.87, 2.8, "predicted: up to 2.76x, exceeded beyond noise\n"),
    ],
)
def test_a_gain_above_the_predicted_one_is_shown_with_its_noise(
    measured: float, low: float, end: str
) -> None:
    text = said(predicted=2.76, measured=measured, low=low, high=3.0, steps=197)
    assert text.startswith(f"without data: {measured:.2f}x faster (99% CI {low:.2f}x to 3.00")
    assert text.endswith(end)


def test_what_could_not_be_predicted_or_measured_is_said() -> None:
    text = said(predicted=None, measured=1.0, low=0.9, high=1.1, steps=197, left=("[5%] at a.py",))
    assert "no finding predicted a gain" in text
    assert "  left all the same: [5%] at a.py\n" in text
    assert said(predicted=2.0) == "the run without data left too little to compare with\n"
