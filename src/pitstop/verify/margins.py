"""Which metric decides, and how much worse still counts as equal, where nobody says."""

from collections.abc import Mapping
from typing import Final

from pitstop.errors import PitstopError
from pitstop.verify.noninferiority import Question

MARGINS: Final[Mapping[str, tuple[float, float]]] = {
    "psnr": (0.1, 0.3),
    "miou": (0.003, 0.003),
    "score": (0.003, 0.003),
    "mAP": (0.003, 0.003),
}
"""By the beginning of a metric's name: for runs of full length, and for shorter ones. PSNR in dB,
the others as shares, 0.003 being 0.3 points."""


def choose_question(
    known: Mapping[str, bool], *, metric: str | None, margin: float | None, is_full: bool
) -> Question:
    """Decide what is asked of the runs.

    Args:
        known: Metrics that the runs have, and whether higher is better.
        metric: Named by the user or the configuration; None for the first with a known margin.
        margin: Given by the user; None for the default of the metric.
        is_full: Whether the runs are as long as the configuration says.

    Raises:
        PitstopError: There is no such metric, or nothing says what margin it has.
    """
    usual = next((one for name in MARGINS for one in known if one.startswith(name)), None)
    chosen = metric or usual
    listed = ", ".join(known) or "none"
    if chosen is None:
        raise PitstopError(f"say which metric decides with --metric; the runs have {listed}")
    if chosen not in known:
        raise PitstopError(f"the runs have no metric {chosen}; they have {listed}")
    length = "full" if is_full else "short"
    found = next((MARGINS[name] for name in MARGINS if chosen.startswith(name)), None)
    if margin is None and found is None:
        raise PitstopError(f"say with --margin how much worse in {chosen} still counts as equal")
    if margin is not None:
        given, source = margin, "--margin"
    else:
        assert found is not None
        given, source = found[0 if is_full else 1], f"the default of {chosen} for {length} runs"
    return Question(metric=chosen, higher_is_better=known[chosen], margin=given, margin_from=source)
