"""Numbers as words: the only place where pitstop formats them."""

import math

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL = ("", "k", "M", "G", "T", "P")

NOT_MEASURED = "not measured"

# 999.5 of a unit would already be shown as 1000.
_NEXT_UNIT = 999.5


def bytes_text(count: float | None) -> str:
    """A size in binary units, three significant digits: ``1.50 GiB``."""
    if count is None or math.isnan(count):
        return NOT_MEASURED
    power = _power(count, 1024, len(_BINARY))
    value = count / 1024**power
    return f"{value:.0f} B" if power == 0 else f"{digits(value)} {_BINARY[power]}"


def seconds_text(seconds: float | None) -> str:
    """A duration in the unit that suits it: ``151 us``, ``20.1 ms``, ``1.81 s``, ``2 h 05 min``."""
    if seconds is None or math.isnan(seconds):
        return NOT_MEASURED
    for unit_s, unit in ((1e-6, "us"), (1e-3, "ms"), (1.0, "s")):
        if abs(seconds) < _NEXT_UNIT * unit_s:
            return f"{digits(seconds / unit_s)} {unit}"
    if math.isinf(seconds):
        return f"{digits(seconds)} s"
    sign = "-" if seconds < 0 else ""
    minutes, rest = divmod(round(abs(seconds)), 60)
    if minutes < 120:
        return f"{sign}{minutes} min {rest:02d} s"
    minutes = round(abs(seconds) / 60)
    return f"{sign}{minutes // 60} h {minutes % 60:02d} min"


def rate_text(value: float | None, unit: str) -> str:
    """A rate with a decimal prefix: ``rate_text(7.9e14, "FLOP/s")`` is ``790 TFLOP/s``."""
    if value is None or math.isnan(value):
        return NOT_MEASURED
    power = _power(value, 1000, len(_DECIMAL))
    return f"{digits(value / 1000**power)} {_DECIMAL[power]}{unit}"


def share_text(share: float | None) -> str:
    """A share of a whole: ``17.2 %``."""
    return NOT_MEASURED if share is None or math.isnan(share) else f"{share * 100:.1f} %"


def speedup_text(speedup: float | None) -> str:
    """How many times as fast: ``1.33x``; None stands for no limit."""
    return "without limit" if speedup is None else f"{speedup:.2f}x"


def count_text(count: int, noun: str) -> str:
    """A count with its noun: ``1 step``, ``2,222 steps``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def digits(value: float) -> str:
    """Three significant digits, never in exponent form."""
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return f"{value:.0f}"
    # Rounded first: 9.996 is shown as 10.0, which has one place after the point.
    decimals = max(0, 2 - math.floor(math.log10(abs(float(f"{value:.2e}")))))
    return f"{value:.{min(decimals, 6)}f}"


def quality_text(value: float | None) -> str:
    """A metric, five significant digits, since models are told apart by the last: ``31.234``."""
    if value is None or math.isnan(value):
        return "not a number"
    if value == 0 or not math.isfinite(value):
        return digits(value)
    decimals = max(0, 4 - math.floor(math.log10(abs(float(f"{value:.4e}")))))
    return f"{value:.{min(decimals, 8)}f}"


def _power(value: float, base: int, powers: int) -> int:
    """The largest prefix that leaves a number that is shown as at least one."""
    power = 0
    while power < powers - 1 and abs(value) >= (base - 0.5) * base**power:
        power += 1
    return power
