"""Two real ranks: their gradients, what exchanging them costs, uneven ends, and failures."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pitstop.records.store import read_run
from pitstop.train.ranks import join_ranks, leave_ranks
from tests.integration.ranks import Doom, exit_codes, launch, train_larger_line
from tests.unit.train.tasks import Batch, SquareTask, make_trainer, one_step

pytestmark = pytest.mark.slow

# Micro-batches by rank: two of two each, and other numbers on each rank.
EVEN = ((2, 2), (2, 2))
UNEVEN = ((3, 1), (1, 3))
LOPSIDED = ((4, 1), (2, 1))


def eight_samples() -> Batch:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(8, 3, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(1, 9, (8,), generator=generator).double()


def write_gradients(
    folder: Path, sizes: tuple[tuple[int, ...], ...], weighted: bool, nominal_count: float
) -> None:
    """Do one step on this rank's share of the samples and write the gradients the optimizer saw."""
    ranks = join_ranks()
    task = SquareTask(nominal_count=nominal_count, weighted=weighted)
    trainer = make_trainer(task, accumulate=len(sizes[ranks.rank]), dtype=torch.float64)
    trainer.model = DistributedDataParallel(trainer.model, gradient_as_bucket_view=True)
    trainer.ranks = ranks
    seen: list[Tensor] = []

    def keep(*_: object) -> None:
        seen.extend(p.grad.clone() for p in trainer.model.parameters() if p.grad is not None)

    trainer.optimizer.register_step_pre_hook(keep)
    dealt = [size for share in sizes for size in share]
    first = sum(len(share) for share in sizes[: ranks.rank])
    inputs, weights = (values.split(dealt) for values in eight_samples())
    mine = list(zip(inputs, weights, strict=True))[first : first + len(sizes[ranks.rank])]
    one_step(trainer, mine)
    torch.save(seen, folder / f"gradients-{ranks.rank}.pt")
    leave_ranks()


def gradients_of_all(model: nn.Module, *, weighted: bool) -> list[Tensor]:
    """The weighted mean square error of all eight samples, written out."""
    inputs, weights = eight_samples()
    error = (model(inputs)[:, 0] - inputs.sum(dim=1)) ** 2
    loss = (error * weights).sum() / weights.sum() if weighted else error.mean()
    return list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("weighted", [False, True], ids=["by samples", "by weight"])
@pytest.mark.parametrize("sizes", [EVEN, UNEVEN, LOPSIDED], ids=["even", "uneven", "lopsided"])
def test_ranks_and_micro_batches_give_the_gradients_of_one_large_batch(
    tmp_path: Path, sizes: tuple[tuple[int, ...], ...], weighted: bool
) -> None:
    ranks = launch(
        write_gradients, tmp_path, sizes, weighted, 3.7, world_size=2, logs=tmp_path / "logs"
    )
    assert exit_codes(ranks) == [0, 0]
    wanted = gradients_of_all(make_trainer(dtype=torch.float64).model, weighted=weighted)
    for rank in range(2):
        got = torch.load(tmp_path / f"gradients-{rank}.pt", weights_only=True)
        assert len(got) == len(wanted) == 4
        for mine, theirs in zip(got, wanted, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-14)


def run_two(folder: Path, doom: Doom | None = None, **settings: object) -> list[int | None]:
    ranks = launch(train_larger_line, folder, settings, doom, world_size=2, logs=folder / "logs")
    return exit_codes(ranks)


def test_each_rank_records_what_the_exchange_of_gradients_costs(tmp_path: Path) -> None:
    assert run_two(tmp_path, train__steps=20, log__every_steps=5) == [0, 0]
    ranks = read_run(tmp_path / "run").ranks
    assert [rank.rank for rank in ranks] == [0, 1]
    for rank in ranks:
        readings = [r.values for r in rank.readings if r.kind == "communication"]
        assert [values["step"] for values in readings] == [4, 9, 14, 19]
        for values in readings:
            assert values["exchange_us"] > 0
            assert 0 <= values["overlapped_us"] <= values["exchange_us"]
            total_us = values["exposed_us"] + values["overlapped_us"]
            assert total_us == pytest.approx(values["exchange_us"])
        assert sum(event.name == "communication" for event in rank.events) == 4


def test_one_rank_alone_exchanges_nothing_and_records_nothing(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    settings = {"train__steps": 4}
    ranks = launch(train_larger_line, tmp_path, settings, None, world_size=1, logs=logs)
    assert exit_codes(ranks) == [0]
    record = read_run(tmp_path / "run").first
    assert not [reading for reading in record.readings if reading.kind == "communication"]


def test_a_rank_with_a_batch_less_in_each_epoch_ends_with_the_others(tmp_path: Path) -> None:
    # 45 samples in rounds of 22 leave one over, which only the first rank gets.
    settings = {"train__batch_size": 11, "loader__drop_last": False}
    codes = run_two(tmp_path, train__steps=None, train__epochs=3, **settings)
    assert codes == [0, 0]
    ranks = read_run(tmp_path / "run").ranks
    lengths = [len(rank.scalars["loss"].step) for rank in ranks]
    assert lengths == [9, 9]
    rates = [rank.scalars["lr"].value.tolist() for rank in ranks]
    assert rates[0] == rates[1]


@pytest.mark.parametrize("rank", [0, 1])
def test_one_ranks_failure_ends_all_and_its_message_is_kept(tmp_path: Path, rank: int) -> None:
    doom = Doom(rank=rank, how="raises in a step", count=7)
    codes = run_two(tmp_path, doom, train__steps=100)
    assert codes == [1, 1]
    message = f"rank {rank} has had enough"
    assert message in (tmp_path / "logs" / f"stderr-{rank}").read_text()
    failed = read_run(tmp_path / "run").ranks[rank].ending
    assert failed is not None
    assert failed.status == "failed"
    assert message in failed.reason
    other = read_run(tmp_path / "run").ranks[1 - rank].ending
    assert other is not None
    assert other.status == "failed"
    assert other.reason.startswith(f"LostRankError: rank {1 - rank} cannot go on")
    assert message in other.reason
