"""Numbers as text: the only place where pitstop formats durations, sizes, rates and shares."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

_BINARY: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL: Final = ("", "k", "M", "G", "T", "P")

NOT_MEASURED: Final = "not measured"

# Half a last digit below the border of a unit, so that 999.6 us is 1.00 ms and no 1000 us.
_SHORT: Final = ((1e-6, 999.5e-6, "us"), (1e-3, 999.5e-3, "ms"), (1.0, 99.95, "s"))
_HOURS_FROM_S: Final = 2 * 3600


def bytes_text(count: float | None) -> str:
    """A size in binary units, three significant digits: ``1.50 GiB``."""
    if count is None or math.isnan(count):
        return NOT_MEASURED
    power = _power(count, 1024, len(_BINARY))
    value = count / 1024**power
    return f"{value:.0f} B" if power == 0 else f"{digits(value)} {_BINARY[power]}"


def seconds_text(seconds: float | None) -> str:
    """A duration: ``151 us``, ``20.1 ms``, ``1.81 s``, ``9 min 32 s``, ``2.5 h``."""
    if seconds is None or math.isnan(seconds):
        return NOT_MEASURED
    if seconds == 0 or math.isinf(seconds):
        return f"{digits(seconds)} s"
    for unit_s, below_s, unit in _SHORT:
        if abs(seconds) < below_s:
            return f"{digits(seconds / unit_s)} {unit}"
    sign = "-" if seconds < 0 else ""
    whole_s = round(abs(seconds))
    if whole_s < _HOURS_FROM_S:
        return f"{sign}{whole_s // 60} min {whole_s % 60:02d} s"
    hours = abs(seconds) / 3600
    return f"{sign}{hours:.1f} h" if hours < 99.95 else f"{sign}{hours:.0f} h"


def moment_text(unix_s: float, *, with_date: bool = True) -> str:
    """A moment of the calendar: ``2026-11-18 14:05 UTC``; what no calendar holds is not known."""
    try:
        moment = datetime.fromtimestamp(unix_s, tz=UTC)
    except (ValueError, OverflowError, OSError):
        return "not recorded"
    return moment.strftime("%Y-%m-%d %H:%M UTC" if with_date else "%H:%M UTC")


def signed_seconds_text(seconds: float) -> str:
    """A difference of durations: ``+20.1 ms``, ``-1.81 s``, ``0 s``."""
    return f"+{seconds_text(seconds)}" if seconds > 0 else seconds_text(seconds)


def signed_range_text(low_s: float | None, high_s: float | None) -> str:
    """An interval of differences: ``-1.81 s to +20.1 ms``; empty where it is not known."""
    if low_s is None or high_s is None:
        return ""
    return f"{signed_seconds_text(low_s)} to {signed_seconds_text(high_s)}"


def us_text(microseconds: float | None) -> str:
    """A duration that is kept in microseconds."""
    return seconds_text(None if microseconds is None else microseconds / 1e6)


def rate_text(value: float | None, unit: str) -> str:
    """A rate with a decimal prefix: ``rate_text(7.9e14, "FLOP/s")`` is ``790 TFLOP/s``."""
    if value is None or math.isnan(value):
        return NOT_MEASURED
    power = _power(value, 1000, len(_DECIMAL))
    return f"{digits(value / 1000**power)} {_DECIMAL[power]}{unit}"


def share_text(share: float | None, error: float | None = None) -> str:
    """A share of a whole: ``17.2%``; with its standard error where that is worth a digit."""
    if share is None or math.isnan(share):
        return NOT_MEASURED
    return f"{share:.1%}" if error is None or error < 0.0005 else f"{share:.1%} ± {error:.1%}"


def change_text(change: float) -> str:
    """A share by which something changed, with its sign: ``+17.2%``."""
    return f"{change:+.1%}"


def speedup_text(speedup: float | None) -> str:
    """How many times as fast: ``1.33x``; None stands for no limit."""
    return "without limit" if speedup is None else f"{speedup:.2f}x"


def count_text(count: int, noun: str) -> str:
    """A count with its noun: ``1 step``, ``2,222 steps``, ``3 batches``."""
    ending = "es" if noun.endswith(("ch", "ss")) else "s"
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}{ending}"


def listing(words: Sequence[object], *, most: int = 5) -> str:
    """The first few of a list, and how many there are more."""
    shown = ", ".join(str(word) for word in words[:most])
    return shown if len(words) <= most else f"{shown} and {len(words) - most} more"


def digits(value: float, significant: int = 3) -> str:
    """That many significant digits, three unless told otherwise, never in exponent form."""
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return f"{value:.0f}"
    # Rounded first: 9.996 is shown as 10.0, which has one place after the point.
    rounded = abs(float(f"{value:.{significant - 1}e}"))
    decimals = max(0, significant - 1 - math.floor(math.log10(rounded)))
    return f"{value:.{min(decimals, significant + 3)}f}"


def quality_text(value: float | None) -> str:
    """A metric, five significant digits, since models differ in the last: ``31.234``."""
    return "not a number" if value is None or math.isnan(value) else digits(value, 5)


def logged_text(value: float) -> str:
    """A value as a log prints it, so that it is found there: four digits, no zeros at the end."""
    text = f"{value:.4g}"
    if "e" not in text:
        return text
    return f"{value:,.0f}" if abs(value) >= 1 else f"{value:.9f}".rstrip("0").rstrip(".")


def _power(value: float, base: int, powers: int) -> int:
    """The largest prefix that leaves a number that is shown as at least one."""
    power = 0
    while power < powers - 1 and abs(value) >= (base - 0.5) * base**power:
        power += 1
    return power
