"""Who is slow and when, as text."""

from typing import Final

from pitstop.doctor.ranks.slow import SlowGroup, When
from pitstop.records.units import moment_text

# Beyond it the hour alone does not say which day's.
_ONE_DAY_S: Final = 24 * 3600.0


def group_text(group: SlowGroup, *, with_host: bool) -> str:
    """Name a rank, or a host with its ranks."""
    slowest = group.slowest
    if group.is_host:
        return f"all {len(group.ranks)} ranks of host {slowest.host}"
    if with_host and slowest.host is not None:
        return f"rank {slowest.rank} (host {slowest.host})"
    return f"rank {slowest.rank}"


def steps_text(when: When) -> str | None:
    """Say in which steps somebody is slow; None where in all of them."""
    if when.pattern == "from":
        return f"from step {when.first_step:,} on"
    if when.pattern == "until":
        return f"until step {when.last_step:,}"
    if when.pattern == "between":
        return f"from step {when.first_step:,} to {when.last_step:,}"
    return None


def moments_text(when: When) -> str | None:
    """Say at which time of day; None where always, or where no clock is known."""
    if when.pattern == "at times":
        return f"it is slow in {when.windows} of {when.of_windows} windows of the run"
    begin, end = when.from_unix_s, when.to_unix_s
    if when.pattern == "always" or begin is None or end is None:
        return None
    dated = end - begin >= _ONE_DAY_S
    first, last = moment_text(begin), moment_text(end, with_date=dated)
    rest = {
        "from": "before that it is as fast as the others",
        "until": "after that it is as fast as the others",
        "between": "before and after it is as fast as the others",
    }[when.pattern]
    return f"slow from {first} to {last}; {rest}"
