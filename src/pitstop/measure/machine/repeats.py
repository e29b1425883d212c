"""Repeats of one piece of work, for a rate with its spread."""

import time
from collections.abc import Callable


def repeated_rates(
    work: Callable[[], object],
    *,
    repeats: int,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Run something for a while, `repeats` times over; return how often a second it ran each time.

    Every sample runs at least once and otherwise as long as its share of `seconds`.
    """
    rates: list[float] = []
    for _ in range(repeats):
        begun_s = ended_s = clock()
        calls = 0
        while calls == 0 or ended_s - begun_s < seconds / repeats:
            work()
            calls += 1
            ended_s = clock()
        if ended_s > begun_s:
            rates.append(calls / (ended_s - begun_s))
    return rates
