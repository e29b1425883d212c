import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pitstop.config.workloads.reid import IdentityTerm, ReidLoss, SdmTerm, TripletTerm
from pitstop.errors import ConfigError
from pitstop.workloads.reid.losses import (
    at_epoch,
    build_terms,
    guide_matching,
    identity_loss,
    irra_matching,
    judge,
    triplet_loss,
)
from pitstop.workloads.reid.model.clip import ReidOutput
from tests.unit.workloads.reid.small_models import random_batch, small_model

torch.set_num_threads(1)

SEEDS = st.integers(0, 2**31)


def _drawn(seed: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Cosines of two modalities, who is who, and who has both; in float64."""
    draw = torch.Generator().manual_seed(seed)
    features = torch.randn(2, count, 3, generator=draw, dtype=torch.float64)
    features = torch.nn.functional.normalize(features, dim=-1)
    persons = torch.randint(0, max(1, count // 2), (count,), generator=draw)
    present = torch.rand(2, count, generator=draw) < 0.7
    return (
        features[0] @ features[1].T,
        persons.unsqueeze(1) == persons,
        present[0].unsqueeze(1) & present[1],
    )


def _rows(matrix: Tensor) -> list[list[float]]:
    return matrix.tolist()


def _slow_rows(
    scores: list[list[float]],
    same: list[list[bool]],
    counts: list[list[bool]],
    distance: Callable[[float, float], float],
) -> float:
    """Mean over rows with a pair, in plain Python; a column that does not count is not there."""
    values = []
    for i, row in enumerate(scores):
        columns = [j for j in range(len(row)) if counts[i][j]]
        pairs = [j for j in columns if same[i][j]]
        if not pairs:
            continue
        highest = max(row[j] for j in columns)
        whole = sum(math.exp(row[j] - highest) for j in columns)
        shares = {j: math.exp(row[j] - highest) / whole for j in columns}
        values.append(sum(distance(shares[j], same[i][j] / len(pairs)) for j in columns))
    return sum(values) / len(values) if values else 0.0


def _both_ways(
    scores: Tensor, same: Tensor, counts: Tensor, distance: Callable[[float, float], float]
) -> tuple[float, float]:
    ways = [(scores, same, counts), (scores.T, same.T, counts.T)]
    first, second = (
        _slow_rows(_rows(s), _rows(m), _rows(c), distance)  # type: ignore[arg-type]
        for s, m, c in ways
    )
    return first, second


@given(seed=SEEDS, count=st.integers(1, 9), temperature=st.floats(0.01, 1.0))
@settings(deadline=None, max_examples=60)
def test_the_guides_matching_is_what_a_loop_gives(
    seed: int, count: int, temperature: float
) -> None:
    cosines, same, counts = _drawn(seed, count)
    found = guide_matching(cosines, same, counts, temperature=temperature)
    scores = (cosines / min(max(temperature, 0.15), 0.5)).clamp(-20, 20)
    ways = _both_ways(scores, same, counts, lambda p, q: -q * math.log(p) if q else 0.0)
    assert float(found) == pytest.approx(sum(ways) / 2, rel=1e-9, abs=1e-9)


@given(seed=SEEDS, count=st.integers(1, 9), temperature=st.floats(0.1, 1.0))
@settings(deadline=None, max_examples=60)
def test_irras_matching_is_what_a_loop_gives(seed: int, count: int, temperature: float) -> None:
    cosines, same, counts = _drawn(seed, count)
    found = irra_matching(cosines, same, counts, temperature=temperature)
    ways = _both_ways(
        cosines / temperature,
        same,
        counts,
        lambda p, q: p * (math.log(p) - math.log(q + 1e-8)),
    )
    assert float(found) == pytest.approx(sum(ways), rel=1e-9, abs=1e-9)


@given(seed=SEEDS, count=st.integers(1, 9), margin=st.floats(0.01, 2.0))
@settings(deadline=None, max_examples=60)
def test_triplets_are_what_a_loop_gives(seed: int, count: int, margin: float) -> None:
    draw = torch.Generator().manual_seed(seed)
    features = torch.randn(count, 4, generator=draw, dtype=torch.float64)
    persons = torch.randint(0, 3, (count,), generator=draw)
    values = []
    for i in range(count):
        apart = [math.dist(features[i].tolist(), features[j].tolist()) for j in range(count)]
        own = [apart[j] for j in range(count) if j != i and persons[j] == persons[i]]
        strange = [apart[j] for j in range(count) if persons[j] != persons[i]]
        if own and strange:
            values.append(max(0.0, margin + max(own) - min(strange)))
    wanted = sum(values) / len(values) if values else 0.0
    found = triplet_loss(features, persons, margin=margin)
    assert float(found) == pytest.approx(wanted, rel=1e-6, abs=1e-6)


def test_the_identity_loss_spreads_a_share_of_the_target() -> None:
    torch.manual_seed(0)
    logits = torch.randn(4, 6, dtype=torch.float64)
    persons = torch.tensor([0, 5, 2, 2])
    shares = logits.log_softmax(1)
    wanted = -(0.9 * shares[range(4), persons] + 0.1 * shares.mean(1)).mean()
    torch.testing.assert_close(identity_loss(logits, persons, smoothing=0.1), wanted)


@pytest.mark.parametrize("match", [guide_matching, irra_matching])
def test_a_batch_without_any_pair_costs_nothing_and_gives_no_nan(
    match: Callable[..., Tensor],
) -> None:
    cosines = torch.randn(3, 5, 5, requires_grad=True)
    nobody = torch.zeros(3, 5, 5, dtype=torch.bool)
    loss = match(cosines, nobody, nobody, temperature=0.2)
    assert loss.tolist() == [0.0, 0.0, 0.0]
    loss.sum().backward()
    assert cosines.grad is not None
    assert cosines.grad.abs().sum() == 0


@pytest.mark.parametrize("match", [guide_matching, irra_matching])
def test_matching_is_never_negative(match: Callable[..., Tensor]) -> None:
    for seed in range(20):
        assert float(match(*_drawn(seed, 8), temperature=0.2)) >= -1e-6


def test_gradients_are_finite_where_records_miss_modalities() -> None:
    model = small_model()
    batch = random_batch(6)
    batch.present[:, 2] = False
    section = ReidLoss(triplet=TripletTerm(weight=1.0), sdm=SdmTerm(kind="irra", temperature=0.02))
    output = model(batch.images, batch.present, batch.tokens)
    judge(build_terms(section), output, batch, step=0, epoch=0).total.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or torch.isfinite(parameter.grad).all(), name


def _output(count: int) -> ReidOutput:
    torch.manual_seed(1)
    return ReidOutput(
        logits=torch.randn(count, 5),
        together=torch.randn(count, 8),
        alone=torch.randn(5, count, 8),
    )


def test_the_loss_is_a_sum_over_samples_of_weighted_means() -> None:
    section = ReidLoss(
        id=IdentityTerm(weight=2.0), sdm=SdmTerm(weight=0.5), triplet=TripletTerm(weight=0.25)
    )
    batch, output = random_batch(6), _output(6)
    loss = judge(build_terms(section), output, batch, step=3, epoch=0)
    wanted = 2.0 * loss.terms["id"] + 0.5 * loss.terms["sdm"] + 0.25 * loss.terms["triplet"]
    assert loss.count == 6
    torch.testing.assert_close(loss.total / loss.count, wanted)


def test_the_epoch_decides_weight_and_temperature() -> None:
    section = ReidLoss(
        sdm=SdmTerm(
            weight=1.0,
            weight_by_epoch=((0, 0.0), (2, 0.5)),
            temperature=0.2,
            temperature_by_epoch=((1, 2.0),),
        )
    )
    batch, output = random_batch(6), _output(6)
    terms = build_terms(section)
    losses = [judge(terms, output, batch, step=0, epoch=epoch) for epoch in range(3)]
    sdm = [float(loss.terms["sdm"]) for loss in losses]
    assert sdm[0] != pytest.approx(sdm[1])
    assert sdm[1] == sdm[2]
    means = [float(loss.total / loss.count - loss.terms["id"]) for loss in losses]
    assert means == pytest.approx([0.0, 0.0, 0.5 * sdm[2]], abs=1e-6)


def test_an_entry_holds_until_the_next_one() -> None:
    by_epoch = ((2, 0.1), (5, 0.3))
    assert [at_epoch(by_epoch, epoch) for epoch in (0, 1, 2, 4, 5, 9)] == [1, 1, 0.1, 0.1, 0.3, 0.3]


def test_a_term_is_computed_at_its_own_cadence() -> None:
    terms = build_terms(ReidLoss(sdm=SdmTerm(every_steps=3)))
    batch, output = random_batch(6), _output(6)
    due = [set(judge(terms, output, batch, step=step, epoch=0).terms) for step in range(4)]
    assert due == [{"id", "sdm"}, {"id"}, {"id"}, {"id", "sdm"}]


def test_steps_without_any_loss_are_refused() -> None:
    section = ReidLoss(id=IdentityTerm(every_steps=2), sdm=SdmTerm(weight=0.0))
    with pytest.raises(ConfigError, match=r"loss.id.every_steps is 2"):
        build_terms(section)
