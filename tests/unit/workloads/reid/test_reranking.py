"""Re-ranking against its definition written out with full matrices and sets."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from pitstop.errors import DataError
from pitstop.workloads.reid.reranking import Reranking, rerank

torch.set_num_threads(1)


def people(queries: int, images: int, *, seed: int, noise: float = 0.6) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    centres = torch.randn(8, 12, generator=draw)
    rows = centres[torch.arange(queries + images) % 8]
    rows = functional.normalize(rows + noise * torch.randn(rows.shape, generator=draw))
    return rows[:queries], rows[queries:]


def written_out(query: Tensor, gallery: Tensor, settings: Reranking) -> NDArray[np.float64]:
    """The definition, in float64: matrices of all by all, neighbours as sets."""
    rows = torch.cat((query, gallery)).double().numpy()
    squares = ((rows[:, None] - rows[None]) ** 2).sum(-1)
    squares /= squares.max(axis=1, keepdims=True)
    order = squares.argsort(axis=1, kind="stable")
    count = len(rows)

    def near(image: int, reach: int) -> set[int]:
        return {int(j) for j in order[image, : reach + 1] if image in order[j, : reach + 1]}

    weights = np.zeros((count, count))
    for image in range(count):
        own = near(image, settings.k1)
        whole = set(own)
        for neighbour in own:
            theirs = near(neighbour, int(np.around(settings.k1 / 2)))
            if len(theirs & own) > 2 / 3 * len(theirs):
                whole |= theirs
        chosen = sorted(whole)
        weights[image, chosen] = np.exp(-squares[image, chosen])
        weights[image] /= weights[image].sum()
    if settings.k2 > 1:
        weights = np.stack([weights[order[i, : settings.k2]].mean(axis=0) for i in range(count)])
    asked = len(query)
    least = np.minimum(weights[:asked, None], weights[None, asked:]).sum(-1)
    most = np.maximum(weights[:asked, None], weights[None, asked:]).sum(-1)
    far = 1 - least / most
    return far * (1 - settings.weight) + squares[:asked, asked:] * settings.weight


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "settings",
    [
        Reranking(),
        Reranking(k1=7, k2=3, weight=0.5),
        Reranking(k1=5, k2=1, weight=0.0),
        Reranking(k1=9, k2=4, weight=1.0),
    ],
)
def test_distances_are_those_of_the_definition(seed: int, settings: Reranking) -> None:
    query, gallery = people(9, 50, seed=seed)
    found = rerank(query, gallery, settings).numpy()
    np.testing.assert_allclose(found, written_out(query, gallery, settings), atol=2e-6)


def test_chunks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    query, gallery = people(9, 50, seed=1)
    whole = rerank(query, gallery, Reranking())
    monkeypatch.setattr("pitstop.workloads.reid.reranking._CHUNK", 4)
    torch.testing.assert_close(rerank(query, gallery, Reranking()), whole, rtol=0, atol=1e-6)


def test_it_finds_people_that_cosines_miss() -> None:
    """Neighbours of neighbours help: the mean rank of the right images falls."""
    query, gallery = people(16, 120, seed=0, noise=1.1)
    who = torch.arange(136) % 8
    same = who[:16, None] == who[None, 16:]
    ranks = [
        scores.argsort(dim=1).argsort(dim=1)[same].float().mean()
        for scores in (-(query @ gallery.T), rerank(query, gallery, Reranking()))
    ]
    assert ranks[1] < 0.9 * ranks[0]


def test_too_few_images_are_said() -> None:
    query, gallery = people(2, 10, seed=0)
    with pytest.raises(DataError, match=r"20 nearest images, and .* 12 together.*rerank_k1"):
        rerank(query, gallery, Reranking())


def test_images_that_are_all_equal_are_equally_far() -> None:
    rows = torch.ones(12, 4)
    found = rerank(rows[:2], rows[2:], Reranking(k1=3, k2=1))
    assert found.isfinite().all()
