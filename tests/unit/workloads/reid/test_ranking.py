"""Ranks against an oracle that sorts every row in plain Python."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pitstop.errors import DataError
from pitstop.workloads.reid import ranking
from pitstop.workloads.reid.ranking import (
    Labels,
    Ranked,
    needed_bytes,
    normalised,
    rank,
    rank_similarities,
    ranks_by_comparing,
    ranks_by_sorting_the_top,
    summary,
)

torch.set_num_threads(1)


@dataclass
class Case:
    query: list[list[float]]
    gallery: list[list[float]]
    query_persons: list[int]
    gallery_persons: list[int]
    query_cameras: list[int] | None = None
    gallery_cameras: list[int] | None = None


def labels(persons: list[int], cameras: list[int] | None = None) -> Labels:
    return Labels(
        persons=np.array(persons, dtype=np.int64),
        cameras=None if cameras is None else np.array(cameras, dtype=np.int64),
    )


def rank_case(
    case: Case, *, dtype: torch.dtype = torch.float64, budget_bytes: int = 1 << 30
) -> Ranked:
    return rank(
        torch.tensor(case.query, dtype=dtype),
        torch.tensor(case.gallery, dtype=dtype),
        labels(case.query_persons, case.query_cameras),
        labels(case.gallery_persons, case.gallery_cameras),
        budget_bytes=budget_bytes,
    )


def oracle(case: Case) -> dict[int, tuple[float, float, int, int]]:
    """Average precision, inverse penalty, first rank and matches of each query that has a match."""
    found = {}
    for number, (feature, person) in enumerate(zip(case.query, case.query_persons, strict=True)):
        order = []
        for place, other in enumerate(case.gallery):
            if case.query_cameras is not None and case.gallery_cameras is not None:
                camera = case.query_cameras[number]
                same = camera == case.gallery_cameras[place] and camera != -1
                if same and case.gallery_persons[place] == person != -1:
                    continue
            similarity = sum(a * b for a, b in zip(feature, other, strict=True))
            order.append((-similarity, place))
        order.sort()
        right = [case.gallery_persons[place] == person != -1 for _, place in order]
        hits, precisions, last = 0, [], 0
        for position, is_right in enumerate(right, start=1):
            if is_right:
                hits += 1
                precisions.append(hits / position)
                last = position
        if hits:
            first = right.index(True) + 1
            found[number] = (math.fsum(precisions) / hits, hits / last, first, hits)
    return found


def assert_equal(ranked: Ranked, expected: dict[int, tuple[float, float, int, int]]) -> None:
    assert ranked.queries.tolist() == list(expected)
    columns = list(zip(*expected.values(), strict=True)) or [(), (), (), ()]
    np.testing.assert_allclose(ranked.average_precision, columns[0], rtol=0, atol=1e-9)
    np.testing.assert_allclose(ranked.inverse_penalty, columns[1], rtol=0, atol=1e-9)
    assert ranked.first_rank.tolist() == list(columns[2])
    assert ranked.matches.tolist() == list(columns[3])


# Products and sums of these are exact in float32, so equal similarities are equal everywhere.
SMALL = st.integers(-3, 3).map(float)


@st.composite
def cases(draw: st.DrawFn, numbers: st.SearchStrategy[float] = SMALL) -> Case:
    width = draw(st.integers(1, 4))
    row = st.lists(numbers, min_size=width, max_size=width)
    query = draw(st.lists(row, min_size=1, max_size=9))
    gallery = draw(st.lists(row, min_size=1, max_size=40))
    person, camera = st.integers(-1, draw(st.integers(0, 4))), st.integers(-1, 2)
    with_cameras = draw(st.booleans())

    def some(values: st.SearchStrategy[int], like: list[list[float]]) -> list[int]:
        return draw(st.lists(values, min_size=len(like), max_size=len(like)))

    return Case(
        query=query,
        gallery=gallery,
        query_persons=some(person, query),
        gallery_persons=some(person, gallery),
        query_cameras=some(camera, query) if with_cameras else None,
        gallery_cameras=some(camera, gallery) if with_cameras else None,
    )


# Half as many again as others get: ties of all kinds are rare.
@settings(max_examples=settings().max_examples * 3 // 2)
@given(case=cases())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_scores_are_those_of_sorting_every_row_with_ties_by_place(
    case: Case, dtype: torch.dtype
) -> None:
    assert_equal(rank_case(case, dtype=dtype), oracle(case))


@given(cases(st.floats(-1, 1, allow_subnormal=False).filter(lambda x: x == 0 or abs(x) > 1e-6)))
def test_scores_of_any_similarities_are_those_of_sorting_them(case: Case) -> None:
    similarities = [
        [sum(a * b for a, b in zip(one, other, strict=True)) for other in case.gallery]
        for one in case.query
    ]
    ranked = rank_similarities(
        torch.tensor(similarities, dtype=torch.float64),
        labels(case.query_persons, case.query_cameras),
        labels(case.gallery_persons, case.gallery_cameras),
    )
    assert_equal(ranked, oracle(case))


def crowd(people: int, images: int, *, seed: int, spread: float, levels: float) -> Case:
    """Make a gallery large enough for tops that are sorted and images that are compared.

    Features are multiples of 1 / levels, so that products are exact and many of them equal.
    """
    rng = np.random.default_rng(seed)
    centres = rng.integers(-8, 9, (people, 6))

    def features(persons: np.ndarray) -> list[list[float]]:
        noise = rng.normal(0, spread, (len(persons), 6))
        return (np.round((centres[persons] + noise) * levels) / levels).tolist()

    gallery, query = rng.integers(0, people, images), rng.integers(0, people, 70)
    return Case(
        query=features(query),
        gallery=features(gallery),
        query_persons=query.tolist(),
        gallery_persons=gallery.tolist(),
        query_cameras=rng.integers(0, 3, 70).tolist(),
        gallery_cameras=rng.integers(0, 3, images).tolist(),
    )


CROWDS: dict[str, Callable[[], Case]] = {
    "well apart": lambda: crowd(40, 1500, seed=0, spread=1.0, levels=4.0),
    "mixed up": lambda: crowd(40, 1500, seed=1, spread=20.0, levels=4.0),
    "many equal": lambda: crowd(40, 1500, seed=2, spread=2.0, levels=0.25),
    "two people with more images than are compared": lambda: crowd(
        2, 1500, seed=3, spread=20.0, levels=1.0
    ),
}


@pytest.mark.parametrize("name", CROWDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_way_of_counting_agrees_with_sorting(name: str, dtype: torch.dtype) -> None:
    case = CROWDS[name]()
    assert_equal(rank_case(case, dtype=dtype), oracle(case))


def test_a_model_that_says_the_same_of_all_is_ranked_by_place() -> None:
    case = crowd(40, 3000, seed=0, spread=1.0, levels=4.0)
    case.query = [[1.0]] * len(case.query)
    case.gallery = [[1.0]] * len(case.gallery)
    assert_equal(rank_case(case, dtype=torch.float32), oracle(case))


@pytest.mark.parametrize("spare_bytes", [0, 1 << 14, 1 << 30])
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), images=st.integers(1, 700), levels=st.sampled_from([3, 10**6]))
def test_comparing_on_a_device_gives_the_ranks_of_the_host(
    spare_bytes: int, seed: int, images: int, levels: int
) -> None:
    rng = np.random.default_rng(seed)
    similarities = rng.integers(-levels, levels, (5, images)).astype(np.float32) / 2**20
    wanted = rng.random((5, images)) < rng.choice([0.01, 0.3])
    rows, columns = np.nonzero(wanted)
    host = ranks_by_sorting_the_top(similarities, rows, columns)
    device = ranks_by_comparing(
        torch.from_numpy(similarities), rows, columns, spare_bytes=spare_bytes
    )
    order = np.argsort(-similarities, axis=1, kind="stable")
    expected = np.argsort(order, axis=1)[rows, columns] + 1
    assert host.tolist() == device.tolist() == expected.tolist()


def test_the_two_zeros_are_equal() -> None:
    similarities = np.array([[-0.0, 0.0, -0.0, 0.0]], dtype=np.float32)
    rows, columns = np.zeros(4, dtype=np.int64), np.arange(4)
    assert ranks_by_sorting_the_top(similarities, rows, columns).tolist() == [1, 2, 3, 4]


def test_the_budget_does_not_change_a_single_bit() -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(300, 33, generator=generator)
    gallery = torch.randn(997, 33, generator=generator)
    persons = torch.randint(0, 20, (1297,), generator=generator)
    who = Labels.of(persons[:300]), Labels.of(persons[300:])
    small = rank(query, gallery, *who, budget_bytes=needed_bytes(997))
    large = rank(query, gallery, *who, budget_bytes=1 << 34)
    for name in ("queries", "average_precision", "inverse_penalty", "first_rank", "matches"):
        assert getattr(small, name).tobytes() == getattr(large, name).tobytes()


def test_a_query_gets_the_same_scores_whatever_queries_come_after_it() -> None:
    generator = torch.Generator().manual_seed(1)
    query, gallery = torch.randn(70, 16, generator=generator), torch.randn(300, 16)
    persons = torch.arange(300) % 7
    alone = rank(query[:3], gallery, Labels.of(persons[:3]), Labels.of(persons))
    among = rank(query, gallery, Labels.of(persons[:70]), Labels.of(persons))
    assert alone.average_precision.tobytes() == among.average_precision[:3].tobytes()


def test_one_image_in_the_gallery_is_enough() -> None:
    case = Case([[1.0], [1.0]], [[0.5]], [4, 5], [4])
    ranked = rank_case(case)
    assert_equal(ranked, {0: (1.0, 1.0, 1, 1)})
    assert summary(ranked).without_match == 1


def test_means_leave_out_queries_without_a_match_and_count_them() -> None:
    case = Case(
        query=[[1.0], [1.0], [1.0]],
        gallery=[[3.0], [2.0], [1.0], *([[0.0]] * 4), [-1.0]],
        query_persons=[0, 1, 9],
        gallery_persons=[0, 2, 0, 3, 3, 3, 3, 1],
    )
    found = summary(rank_case(case))
    assert (found.queries, found.without_match) == (2, 1)
    assert found.mean_average_precision == pytest.approx(((1 + 2 / 3) / 2 + 1 / 8) / 2, abs=1e-12)
    assert found.mean_inverse_penalty == pytest.approx((2 / 3 + 1 / 8) / 2, abs=1e-12)
    assert found.named() == {
        "mAP": found.mean_average_precision,
        "mINP": found.mean_inverse_penalty,
        "r1": 0.5,
        "r5": 0.5,
        "r10": 1.0,
    }


def test_images_of_the_same_camera_are_left_out_and_do_not_push_others_down() -> None:
    case = Case([[1.0]], [[3.0], [2.0], [1.0]], [7], [7, 7, 7], [1], [1, 1, 2])
    assert_equal(rank_case(case), {0: (1.0, 1.0, 1, 1)})


def test_people_and_cameras_nobody_knows_are_equal_to_nothing() -> None:
    case = Case([[1.0], [1.0]], [[2.0], [1.0]], [-1, 3], [-1, 3], [0, -1], [0, -1])
    assert_equal(rank_case(case), {1: (0.5, 0.5, 2, 1)})


def test_autocast_does_not_coarsen_similarities() -> None:
    query, gallery = torch.tensor([[1.0]]), torch.tensor([[1.0], [1.0 + 2**-20]])
    who = labels([0]), labels([0, 1])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert rank(query, gallery, *who).first_rank.tolist() == [2]


def test_features_of_length_one_keep_a_row_of_zeros() -> None:
    rows = normalised(torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.bfloat16))
    torch.testing.assert_close(rows, torch.tensor([[0.6, 0.8], [0.0, 0.0]]))


def test_nothing_to_average_is_an_error() -> None:
    ranked = rank_case(Case([[1.0]], [[1.0]], [0], [1]))
    with pytest.raises(DataError, match="none of the 1 queries has an image of its person"):
        summary(ranked)


ONES = [[1.0, 1.0]]


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (Case([], ONES, [], [0]), "must be rows of a matrix|the query has no images"),
        (Case(ONES, [[1.0]], [0], [0]), "query features have 2 numbers and gallery features 1"),
        (
            Case(ONES, [*ONES, [0.0, math.nan], [math.inf, 0.0]], [0], [0, 0, 0]),
            "2 of 3 gallery features hold NaN or infinity, the first is number 1",
        ),
        (Case(ONES, ONES, [0, 1], [0]), "1 query images need a person label each"),
        (Case(ONES, ONES, [0], [0], [1]), "cameras are given for the queries or for the gallery"),
    ],
)
def test_what_cannot_be_ranked_is_named(case: Case, message: str) -> None:
    with pytest.raises(DataError, match=message):
        rank_case(case)


def test_an_empty_gallery_is_named() -> None:
    with pytest.raises(DataError, match="the gallery has no images"):
        rank(torch.ones(1, 2), torch.ones(0, 2), labels([0]), labels([]))


def test_a_similarity_that_is_no_number_is_named() -> None:
    similarities = torch.tensor([[0.0], [math.nan]])
    with pytest.raises(DataError, match="1 of 2 rows of similarities hold NaN"):
        rank_similarities(similarities, labels([0, 0]), labels([0]))


def test_a_budget_too_small_for_a_tile_says_what_is_needed() -> None:
    need = needed_bytes(1000, 8)
    case = Case([[1.0]], [[1.0]] * 1000, [0], [0] * 1000)
    with pytest.raises(DataError, match=f"needs {need:,} bytes, and the budget is {need - 1:,}"):
        rank_case(case, budget_bytes=need - 1)


def test_the_budget_of_a_large_gallery_is_far_below_a_matrix_of_it() -> None:
    assert needed_bytes(45_113) < 7_200 * 45_113 * 4 / 20
    assert needed_bytes(45_113, 8) < ranking.DEFAULT_BUDGET_BYTES
