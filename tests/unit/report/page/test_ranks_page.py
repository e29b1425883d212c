"""Many ranks on the page: a heat map that stays small, hosts together, who is slow named."""

import re
from dataclasses import replace

import numpy as np
import pytest

from pitstop.doctor.judge import judge_run
from pitstop.doctor.ranks.grid import RankGrid
from pitstop.doctor.ranks.slow import SlowGroup, slowest_of
from pitstop.doctor.ranks.times import RankTimes
from pitstop.report.page.blocks import Chart, Section, Table
from pitstop.report.page.html import MOST_BYTES
from pitstop.report.page.ranks.heat_map import heat_map, legend
from pitstop.report.page.ranks.section import ranks_section
from pitstop.report.page.run import view_of
from tests.many_ranks import Slow, slow_host, write_ranks


def grid_of(own_us: np.ndarray, hosts: list[str]) -> RankGrid:
    ranks, windows = own_us.shape
    return RankGrid(
        ranks=tuple(range(ranks)),
        hosts=tuple(hosts),
        first_step=tuple(range(0, 10 * windows, 10)),
        last_step=10 * windows - 1,
        unix_s=tuple(1e9 + 60.0 * window for window in range(windows)),
        own_us=own_us,
        wall_us=np.full((ranks, windows), 100.0),
        settled=0,
    )


def slow_of(grid: RankGrid) -> tuple[SlowGroup, ...]:
    times = [
        RankTimes(
            rank=rank, host=host, steps=100, step_us=100.0, total_us=10_000.0,
            own_us={"forward": float(np.nanmean(own))}, exposed_us=None,
        )
        for rank, host, own in zip(grid.ranks, grid.hosts, grid.own_us, strict=True)
    ]  # fmt: skip
    found = slowest_of(times, grid)
    return () if found is None else (found,)


def painted(svg: str, look: str) -> set[tuple[int, int, int]]:
    """Pieces of one colour: row, and where they begin and end in tenths of a percent."""
    found = re.search(rf'<path d="([^"]*)" class="cell {look}"', svg)
    pieces = re.findall(r"M([\d.]+) (\d+)h([\d.]+)v1h-[\d.]+z", found.group(1)) if found else []
    return {(int(row), round(float(x)), round(float(x) + float(w))) for x, row, w in pieces}


def test_cells_lie_where_their_ranks_and_windows_are() -> None:
    own = np.full((4, 10), 50.0)
    own[2, 4:7] += 15  # 15 % of a step
    own[3, :] += 50
    own[1, 9] = np.nan
    svg = heat_map("map", grid_of(own, ["a", "b", "a", "b"]), ()).text
    # Hosts stand together: rows are ranks 0, 2, 1, 3.
    assert painted(svg, "h3") == set()
    assert painted(svg, "h-none") == {(2, 900, 1000)}
    middle = np.full((8, 10), 50.0)
    middle[2, 4:7] += 15
    middle[3, :] += 50
    svg = heat_map("map", grid_of(middle, ["a", "b"] * 4), ()).text
    assert painted(svg, "h3") == {(1, 400, 700)}
    assert painted(svg, "h5") == {(5, 0, 1000)}
    assert [entry.colour for entry in legend()] == ["h0", "h1", "h2", "h3", "h4", "h5", "h-none"]


def test_a_thousand_restless_ranks_stay_a_small_drawing() -> None:
    random = np.random.default_rng(0)
    own = random.uniform(20, 90, (1024, 23))
    svg = heat_map("map", grid_of(own, [f"host-{n // 8}" for n in range(1024)]), ()).text
    assert len(svg.encode()) < 0.7 * MOST_BYTES
    height = float(re.findall(r'height="([\d.]+)"', svg)[0])
    assert height < 1_100


def test_a_host_may_have_any_name() -> None:
    own = np.full((4, 6), 50.0)
    own[3] += 40
    long = "ip-10-0-200-117-of-somewhere.internal"
    grid = grid_of(own, ["<script>", "<script>", long, long])
    svg = heat_map("map", grid, slow_of(grid)).text
    assert "<script>" not in svg
    assert "&lt;script&gt;" in svg
    assert "...f-somewhere" in svg
    assert "rank 3" in svg
    unknown = replace(grid, hosts=(None,) * 4, unix_s=(None,) * 6)
    assert "UTC" not in heat_map("map", unknown, ()).text


@pytest.fixture(scope="module")
def section(tmp_path_factory: pytest.TempPathFactory) -> Section:
    folder = tmp_path_factory.mktemp("ranks") / "run"
    slow = [
        Slow(ranks=(20,), part="data", excess_us=50_000),
        slow_host(1, part="forward", excess_us=60_000, first=512),
    ]
    write_ranks(folder, ranks=24, steps=1_536, slow=slow)
    found = ranks_section(view_of(judge_run(folder)))
    assert found is not None
    return found


def test_the_section_names_who_is_slow(section: Section) -> None:
    assert section.lead is not None
    assert section.lead.startswith("24 ranks on 3 hosts.")
    assert "rank 20 (host node-02)" in section.lead
    assert "from step 512 on, all 8 ranks of host node-01" in section.lead
    [chart] = [block for block in section.blocks if isinstance(block, Chart)]
    assert 'class="outline"' in chart.svg.text
    assert "rank 20" in chart.svg.text
    description = re.search(r"<desc[^>]*>([^<]*)</desc>", chart.svg.text)
    assert description is not None
    assert "24 ranks on 3 hosts, steps 0 to 1,535" in description.group(1)


def test_tables_begin_with_the_slowest(section: Section) -> None:
    ranks, hosts = (block for block in section.blocks if isinstance(block, Table))
    assert ranks.rows[0][0].text == "20"
    assert ranks.left_out == 8
    assert hosts.rows[0][0].text == "node-01"
    assert [cell.text for cell in hosts.rows[0][1:2]] == ["8"]
