from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pitstop.kernels import splat_columns_plan
from pitstop.kernels.splat import dispatch
from pitstop.kernels.splat_columns_plan import (
    COLUMN,
    PAIR_BINS,
    ColumnPlan,
    Frustum,
    join_column_plans,
    make_column_plan,
)
from tests.interpreted import (
    assert_cases_hold_under_the_interpreter,
    needs_triton,
    said_by_the_compiler,
)

torch.set_num_threads(1)

HERE = Path(__file__).parent


@pytest.mark.slow
@needs_triton
def test_the_splat_of_columns_keeps_its_claims_under_the_interpreter() -> None:
    assert_cases_hold_under_the_interpreter(HERE / "splat_columns_cases.py")


@pytest.mark.slow
@needs_triton
def test_the_compiler_takes_the_kernels_for_a_device_that_is_not_here() -> None:
    said = said_by_the_compiler(HERE / "splat_columns_compiled.py")
    assert said.count("compiled") == 9


def plan_of(
    cells: Tensor, frustum: Frustum, num_cells: int, picture: tuple[int, int]
) -> ColumnPlan:
    return make_column_plan(
        cells,
        num_cells=num_cells,
        cell_picture=picture,
        feature_picture=(frustum.height, frustum.width),
        num_bins=frustum.bins,
    )


frustums = st.builds(
    Frustum,
    pictures=st.integers(1, 3),
    height=st.integers(1, 40),
    width=st.integers(1, 4),
    bins=st.integers(1, 20),
)


def covered(plan: ColumnPlan) -> list[tuple[int, int]]:
    """Point and tile of all that the pieces sum, read off one by one."""
    frustum, found = plan.frustum, []
    pairs = [part.tolist() for part in (plan.pairs.tiles, plan.pairs.starts, plan.pairs.ends)]
    for tile, start, end in zip(*pairs, strict=True):
        for number in range(start, end) if tile >= 0 else []:
            top, less_one = divmod(int(plan.pairs.tops[number]), COLUMN)
            first = int(plan.pairs.points[number]) - top * frustum.bins
            last = min(first + plan.pair_bins, frustum.bins)
            for row in range(less_one + 1):
                pixel = top + row * frustum.width
                found += [(pixel * frustum.bins + level, tile) for level in range(first, last)]
    return found


@given(frustum=frustums, seed=st.integers(0, 9), spread=st.integers(1, 80))
@settings(max_examples=30, deadline=None)
def test_every_point_is_met_exactly_once_by_the_tile_of_its_cell(
    frustum: Frustum, seed: int, spread: int
) -> None:
    picture = (7, 9)
    generator = torch.Generator().manual_seed(seed)
    cells = torch.randint(-1, spread, (frustum.num_points,), generator=generator)
    plan = plan_of(cells, frustum, 63, picture)
    met = covered(plan)
    assert len(met) == len(set(met))
    across = -(-picture[1] // plan.cells.columns)
    tiles = {}
    for point, cell in enumerate(cells.tolist()):
        if 0 <= cell < 63:
            y, x = divmod(cell, picture[1])
            tiles[point] = (y // plan.cells.rows) * across + x // plan.cells.columns
    assert {(point, tile) for point, tile in met if tiles.get(point) == tile} == set(tiles.items())


@given(
    frustum=frustums,
    seed=st.integers(0, 9),
    chunk=st.integers(1, 5),
    spread=st.sampled_from((1, 4, 63)),
)
@settings(max_examples=60, deadline=None)
def test_pieces_cover_all_tiles_however_many_pairs_there_are(
    frustum: Frustum, seed: int, chunk: int, spread: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    cells = torch.randint(0, spread, (frustum.num_points,), generator=generator)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splat_columns_plan, "CHUNK", chunk)
        plan = plan_of(cells, frustum, 63, (7, 9))
    pairs = plan.pairs
    known = pairs.tiles >= 0
    assert set(pairs.tiles[known].tolist()) == set(range(plan.cells.num_tiles))
    assert torch.equal(pairs.last_pieces[:-1], pairs.first_pieces[1:])
    assert int(pairs.last_pieces[-1]) == int(known.sum())
    counts = pairs.ends[(pairs.last_pieces - 1).long()] - pairs.starts[pairs.first_pieces.long()]
    needed = int(((counts + chunk - 1) // chunk).clamp(min=1).sum())
    assert needed > len(pairs.tiles) or int((pairs.ends - pairs.starts).max()) <= chunk
    # One after the other, without a gap: nothing is summed twice or forgotten.
    starts, ends = pairs.starts[known], pairs.ends[known]
    assert torch.equal(starts[1:], ends[:-1])
    assert int(starts[0]) == 0


def test_a_level_camera_has_a_pair_for_each_column_that_crosses_a_tile() -> None:
    # Straight ahead over a line of tiles of four cells, two depths to a cell.
    frustum = Frustum(1, 32, 5, 27)
    ahead = torch.arange(27)
    cells = torch.where(ahead < 24, ahead // 2, -1).expand(32, 5, 27).flatten()
    plan = plan_of(cells, frustum, 48, (4, 12))
    pieces = plan.pairs.tiles >= 0
    assert int((plan.pairs.ends - plan.pairs.starts)[pieces].sum()) == 3 * (8 // PAIR_BINS) * 10
    starts = set((plan.pairs.points[: int(plan.pairs.ends.max())] % 27).tolist())
    assert starts == {0, 4, 8, 12, 16, 20}


def test_a_column_that_enters_a_tile_between_two_blocks_still_makes_one_pair() -> None:
    frustum = Frustum(1, 16, 1, 12)
    cells = torch.full((16, 12), -1)
    cells[:, 3 : 3 + PAIR_BINS] = 5
    plan = plan_of(cells.flatten(), frustum, 16, (4, 4))
    assert plan.pairs.ends.tolist()[0] == 1
    assert plan.pairs.points.tolist()[0] == 3


def test_a_plan_is_made_without_looking_at_the_values() -> None:
    frustum = Frustum(2, 18, 3, 7)
    cells = torch.zeros(frustum.num_points, dtype=torch.int32)
    known = plan_of(cells, frustum, 63, (7, 9))
    # There are no values to look at on this device.
    blind = plan_of(cells.to("meta"), frustum, 63, (7, 9))
    for mine, other in zip(blind.pairs, known.pairs, strict=True):
        assert (mine.shape, mine.dtype) == (other.shape, other.dtype)
        assert mine.dtype == torch.int32


class Launches(TorchDispatchMode):
    """Counts the operations that do more than look at a tensor in another way."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket.__name__
        self.count += not func.is_view and name not in {"scalar_tensor", "_unsafe_view"}
        return func(*args, **(kwargs or {}))


def launches_of(run: Callable[[], object]) -> int:
    with Launches() as counter:
        run()
    return counter.count


@pytest.mark.parametrize(
    ("height", "picture", "most"), [(32, (8, 12), 70), (18, (8, 12), 80), (18, (7, 9), 85)]
)
def test_a_plan_takes_few_operations_since_a_step_may_make_one(
    height: int, picture: tuple[int, int], most: int
) -> None:
    frustum = Frustum(2, height, 3, 7)
    cells = torch.zeros(frustum.num_points, dtype=torch.int32)
    num_cells = picture[0] * picture[1]
    assert launches_of(lambda: plan_of(cells, frustum, num_cells, picture)) <= most


def test_plans_are_put_together_in_few_operations() -> None:
    frustum = Frustum(2, 18, 3, 7)
    plan = plan_of(torch.zeros(frustum.num_points, dtype=torch.int32), frustum, 63, (7, 9))
    assert launches_of(lambda: join_column_plans([plan] * 8)) <= 25


def test_where_the_fused_splat_cannot_run_a_plan_of_columns_changes_nothing() -> None:
    frustum = Frustum(1, 18, 2, 5)
    cells = torch.arange(frustum.num_points) % 70 - 3
    plan = plan_of(cells, frustum, 63, (7, 9))
    generator = torch.Generator().manual_seed(1)
    depth = torch.rand(frustum.num_points, generator=generator)
    feat = torch.randn(frustum.num_pixels, 4, generator=generator)
    ranks = torch.arange(frustum.num_points)
    for kernels in ("auto", "reference"):
        run = dispatch(kernels)
        plain = run(depth, feat, ranks, ranks // 5, cells, 63)
        assert torch.equal(run(depth, feat, ranks, ranks // 5, cells, 63, plan), plain)
