"""Ranks side by side: bars of a few, a heat map of many."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from pitstop.doctor.facts import Facts
from pitstop.doctor.ranks.times import RankTimes, own_excess_us
from pitstop.doctor.ranks.together import MOST_WHOLE, Ranks
from pitstop.doctor.ranks.words import group_text, steps_text
from pitstop.records.units import count_text, rate_text, seconds_text, share_text, us_text
from pitstop.report.page.blocks import (
    Block,
    Cell,
    Chart,
    Section,
    Table,
    named_columns,
    number_cell,
    text_cell,
    text_columns,
)
from pitstop.report.page.charts import bar, legend_of
from pitstop.report.page.ranks.heat_map import heat_map, legend
from pitstop.report.page.run import RunView, quartiles
from pitstop.report.page.step import part_times_us, segments_of

_TITLE: Final = "Ranks side by side"
_MOST_ROWS: Final = 16
_HOW: Final = (
    "Measured after warm-up: means of a step, without backward and sync, in which ranks wait."
)


def ranks_section(view: RunView) -> Section | None:
    """Ranks side by side, on one scale; many as a heat map."""
    if view.ranks is None or len(view.ranks.times) < 2:
        return None
    if len(view.ranks.times) > MOST_WHOLE:
        return _many(view, view.ranks)
    ranks = [one for one in view.ranks.facts if one.steps and one.parts_us]
    return _few(view, ranks) if ranks else None


def _few(view: RunView, ranks: Sequence[Facts]) -> Section:
    longest = max(float(one.wall_us.mean()) for one in ranks)
    charts: list[Block] = []
    for one in ranks:
        segments = segments_of(view, one, whole_us=longest)
        name = f"Rank {one.summary.rank}"
        charts.append(
            Chart(
                caption=f"{name}, {seconds_text(float(one.wall_us.mean()) / 1e6)} a step",
                svg=bar(f"rank-{one.summary.rank}", f"{name}: a step", segments, height=24),
                legend=legend_of(segments) if one is ranks[-1] else (),
            )
        )
    table = Table(
        caption="Ranks in numbers",
        columns=named_columns("rank", "steps", "median step", "IQR", "samples/s", "largest part"),
        rows=tuple(_rank_row(one) for one in ranks),
        note="Measured after warm-up; bars are means on one scale.",
        sortable=True,
    )
    lead = f"The verdict rests on rank {view.verdict.rank}."
    return Section(key="ranks", title=_TITLE, lead=lead, blocks=(*charts, table))


def _rank_row(facts: Facts) -> tuple[Cell, ...]:
    spread = quartiles(facts.wall_us / 1e6)
    assert spread is not None
    low, middle, high = spread
    rate = None
    if facts.samples is not None and facts.total_us:
        rate = facts.samples * facts.steps / (facts.total_us / 1e6)
    times = part_times_us(facts)
    largest = max(times, key=times.__getitem__)
    return (
        number_cell(f"{facts.summary.rank}", facts.summary.rank),
        number_cell(f"{facts.steps:,}", facts.steps),
        number_cell(seconds_text(middle), middle),
        text_cell(f"{seconds_text(low)} to {seconds_text(high)}"),
        number_cell(rate_text(rate, "samples/s"), rate),
        text_cell(f"{largest} {us_text(times[largest])}"),
    )


def _many(view: RunView, ranks: Ranks) -> Section:
    times = [one for one in ranks.times if one.steps]
    hosts = {one.host for one in times}
    middle_us = float(np.median([one.whole_own_us for one in times])) if times else 0.0
    on = "" if None in hosts else f" on {count_text(len(hosts), 'host')}"
    lead = (
        f"{count_text(len(ranks.times), 'rank')}{on}. "
        f"The verdict rests on rank {view.verdict.rank}. {_who_is_slow(ranks)}"
    )
    chart = Chart(
        caption="Own work beyond the median rank, as a share of the step",
        svg=heat_map("rank-heat", ranks.grid, ranks.slow),
        legend=legend(),
        note="Measured: a row a rank, hosts one below the other, a column a window of steps.",
    )
    blocks: list[Block] = [chart, _slowest_ranks(times, middle_us)]
    if len(hosts) > 1:
        blocks.append(_hosts(times, middle_us))
    return Section(key="ranks", title=_TITLE, lead=lead, blocks=tuple(blocks))


def _who_is_slow(ranks: Ranks) -> str:
    if not ranks.slow:
        return "No rank and no host stands out."
    named = []
    for group in ranks.slow:
        who, when = group_text(group, with_host=True), steps_text(group.when)
        named.append(who if when is None else f"{when}, {who}")
    said = "; ".join(named)
    return f"Slower than the others: {said}."


def _hosts(times: Sequence[RankTimes], middle_us: float) -> Table:
    by_host: dict[str, list[RankTimes]] = {}
    for one in times:
        by_host.setdefault(one.host or "not recorded", []).append(one)
    rows = sorted(
        (_host_row(host, ranks, middle_us) for host, ranks in by_host.items()),
        key=lambda row: -(row[3].value or 0.0),
    )
    return Table(
        caption="Hosts, the slowest first",
        columns=named_columns(
            "host", "ranks", "own work a step", "beyond the median rank", "slowest rank"
        ),
        rows=tuple(rows[:_MOST_ROWS]),
        note=f"{_HOW} Own work is that of the host's median rank.",
        sortable=True,
        left_out=max(0, len(rows) - _MOST_ROWS),
    )


def _host_row(host: str, ranks: Sequence[RankTimes], middle_us: float) -> tuple[Cell, ...]:
    own_us = float(np.median([one.whole_own_us for one in ranks]))
    slowest = max(ranks, key=lambda one: one.whole_own_us)
    share = _share(own_us - middle_us, slowest)
    return (
        text_cell(host),
        number_cell(f"{len(ranks)}", len(ranks)),
        number_cell(us_text(own_us), own_us),
        number_cell(share_text(share), share),
        number_cell(f"{slowest.rank}", slowest.rank),
    )


def _slowest_ranks(times: Sequence[RankTimes], middle_us: float) -> Table:
    slowest = sorted(times, key=lambda one: -one.whole_own_us)
    return Table(
        caption="The slowest ranks",
        columns=(
            *text_columns("rank"),
            *named_columns("host", "own work a step", "beyond the median rank"),
            *text_columns("largest part of it"),
        ),
        rows=tuple(_slow_row(one, times, middle_us) for one in slowest[:_MOST_ROWS]),
        note=_HOW,
        sortable=True,
        left_out=max(0, len(slowest) - _MOST_ROWS),
    )


def _slow_row(one: RankTimes, times: Sequence[RankTimes], middle_us: float) -> tuple[Cell, ...]:
    share = _share(one.whole_own_us - middle_us, one)
    excess = own_excess_us(one, times)
    part = max(excess, key=excess.__getitem__, default="")
    largest = f"{part} {us_text(excess[part])}" if part and excess[part] > 0 else ""
    return (
        number_cell(f"{one.rank}", one.rank),
        text_cell(one.host or "not recorded"),
        number_cell(us_text(one.whole_own_us), one.whole_own_us),
        number_cell(share_text(share), share),
        text_cell(largest),
    )


def _share(excess_us: float, one: RankTimes) -> float:
    return max(0.0, excess_us) / one.step_us if one.step_us else 0.0
