"""The step: the update is the large batch's, precision is what was asked, nothing is read."""

import pytest
import torch
from torch import Tensor

from pitstop.config.sections import ClipSection, ScalerSection
from pitstop.train.model.distill import Teacher
from pitstop.train.step import Trainer, takes_flag
from pitstop_probe import Clock
from tests.fakes import ListSink
from tests.unit.train.tasks import Batch, SquareTask, make_trainer, one_step, weights_of

torch.set_num_threads(1)


def samples(count: int, *, seed: int = 1, dtype: torch.dtype = torch.float64) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 3, generator=generator, dtype=dtype)
    weights = torch.randint(1, 9, (count,), generator=generator).to(dtype)
    return inputs, weights


def dealt(batch: Batch, sizes: list[int]) -> list[Batch]:
    return list(zip(batch[0].split(sizes), batch[1].split(sizes), strict=True))


def gradients_seen(trainer: Trainer[Batch], batches: list[Batch]) -> list[Tensor]:
    """Gradients as the optimizer finds them."""
    seen: list[Tensor] = []

    def keep(*_: object) -> None:
        seen.extend(p.grad.clone() for p in trainer.model.parameters() if p.grad is not None)

    handle = trainer.optimizer.register_step_pre_hook(keep)
    one_step(trainer, batches)
    handle.remove()
    return seen


@pytest.mark.parametrize("weighted", [False, True], ids=["by samples", "by weight"])
@pytest.mark.parametrize("sizes", [[8], [4, 4], [2] * 4, [1] * 8, [5, 1, 2]])
def test_accumulation_gives_the_gradients_of_the_large_batch(
    sizes: list[int], weighted: bool
) -> None:
    batch = samples(8)
    task = SquareTask(nominal_count=3.7, weighted=weighted)
    trainer = make_trainer(task, accumulate=len(sizes), dtype=torch.float64)
    got = gradients_seen(trainer, dealt(batch, sizes))

    oracle = make_trainer(task, dtype=torch.float64).model
    loss = task.loss(oracle(batch[0]), batch, 0)
    (loss.total / loss.count).backward()
    wanted = [p.grad for p in oracle.parameters() if p.grad is not None]
    assert len(got) == len(wanted) == 4
    for mine, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-14)


# The compiler is imported for its mark, and warns of its own imports.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_gradients_leave_the_memory_that_recorded_graphs_write_over() -> None:
    """A graph's next pass writes over what it gave; here a hook plays the graph."""
    batch, task = samples(8), SquareTask()
    wanted = gradients_seen(
        make_trainer(task, accumulate=4, dtype=torch.float64), dealt(batch, [2] * 4)
    )
    trainer = make_trainer(task, accumulate=4, dtype=torch.float64)
    trainer.records_graphs = True
    given: dict[Tensor, Tensor] = {}

    def write_over(*_: object) -> None:
        for tensor in given.values():
            tensor.fill_(torch.nan)

    def keep_first(parameter: Tensor) -> None:
        # Only the first pass gives its memory away; later ones are added to what is there.
        assert parameter.grad is not None
        given.setdefault(parameter, parameter.grad)

    trainer.model.register_forward_pre_hook(write_over)
    for parameter in trainer.model.parameters():
        parameter.register_post_accumulate_grad_hook(keep_first)
    got = gradients_seen(trainer, dealt(batch, [2] * 4))
    torch.testing.assert_close(got, wanted, rtol=0, atol=0)


def test_the_mean_of_means_would_fail_that_test() -> None:
    """The usual mistake, dividing each micro-batch's mean by their number, is another gradient."""
    batch = samples(8)
    task = SquareTask()
    right, wrong = (make_trainer(task, dtype=torch.float64).model for _ in range(2))
    loss = task.loss(right(batch[0]), batch, 0)
    (loss.total / loss.count).backward()
    for part in dealt(batch, [5, 1, 2]):
        mean = task.loss(wrong(part[0]), part, 0)
        (mean.total / mean.count / 3).backward()
    first = [model[0].weight.grad for model in (right, wrong)]  # type: ignore[index]
    assert not torch.allclose(first[0], first[1], rtol=1e-3)


def test_the_update_does_not_depend_on_the_nominal_count() -> None:
    results = []
    for nominal in (1.0, 1000.0):
        trainer = make_trainer(SquareTask(nominal_count=nominal), dtype=torch.float64)
        one_step(trainer, [samples(8)])
        results.append(weights_of(trainer))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)],
)
def test_matrix_products_run_in_the_precision_asked_for(precision: str, dtype: torch.dtype) -> None:
    task = SquareTask(weighted=False)
    trainer = make_trainer(task, precision=precision)  # type: ignore[arg-type]
    result = one_step(trainer, [samples(4, dtype=torch.float32)])
    assert task.seen_dtypes == [dtype]
    assert result.loss.dtype == torch.float32
    assert all(weight.dtype == torch.float32 for weight in weights_of(trainer))


def test_tf32_is_allowed_under_tf32_and_forbidden_under_fp32() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        make_trainer(precision="tf32").precision.apply_to_process()
        assert torch.get_float32_matmul_precision() == "high"
        make_trainer(precision="fp32").precision.apply_to_process()
        assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.set_float32_matmul_precision(before)


def test_the_loss_scale_cancels_out_and_its_start_is_honoured() -> None:
    weights = []
    for start in (1.0, 1024.0):
        trainer = make_trainer(precision="fp16", scaler=ScalerSection(start=start))
        assert trainer.precision.loss_scale is not None
        assert trainer.precision.loss_scale.scale.item() == start
        one_step(trainer, [samples(4, dtype=torch.float32)])
        weights.append(weights_of(trainer))
    for one, other in zip(*weights, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-3, atol=2e-3)


def poisoned(count: int) -> Batch:
    inputs, weights = samples(count, dtype=torch.float32)
    inputs[0, 0] = float("nan")
    return inputs, weights


@pytest.mark.parametrize("optimizer", [None, torch.optim.SGD], ids=["fused", "skipped by the host"])
def test_a_step_that_is_not_finite_leaves_no_trace(
    optimizer: type[torch.optim.Optimizer] | None,
) -> None:
    trainer = make_trainer(optimizer=optimizer, ema=0.5, clip=ClipSection())
    before = weights_of(trainer)
    result = one_step(trainer, [poisoned(4)])
    assert result.found_inf.item() == 1
    assert result.bad_loss.item() == 1
    assert result.host_syncs == (0 if takes_flag(trainer.optimizer) else 1)
    assert all(torch.equal(a, b) for a, b in zip(before, weights_of(trainer), strict=True))

    healthy = make_trainer(optimizer=optimizer, ema=0.5, clip=ClipSection())
    for each in (trainer, healthy):
        one_step(each, [samples(4, dtype=torch.float32)])
    assert all(
        torch.equal(a, b) for a, b in zip(weights_of(trainer), weights_of(healthy), strict=True)
    ), "the optimizer's own state must not remember the step that was left out"


def test_an_overflow_shrinks_the_scale_and_a_streak_lets_it_grow() -> None:
    section = ScalerSection(start=2.0**40, growth_every_steps=2)
    trainer = make_trainer(precision="fp16", scaler=section)
    scale = trainer.precision.loss_scale
    assert scale is not None
    result = one_step(trainer, [samples(4, dtype=torch.float32)])
    assert (result.found_inf.item(), result.bad_loss.item()) == (1, 0)
    assert scale.scale.item() == 2.0**39
    scale.scale.fill_(8.0)
    for _ in range(2):
        one_step(trainer, [samples(4, dtype=torch.float32)])
    assert scale.scale.item() == 16.0


def test_the_norm_is_that_before_clipping_and_only_there_when_used() -> None:
    batch = samples(8)
    free = make_trainer(dtype=torch.float64)
    gradients = gradients_seen(free, [batch])
    norm = torch.cat([g.flatten() for g in gradients]).norm()

    assert one_step(make_trainer(dtype=torch.float64), [batch]).grad_norm is None
    seen = one_step(make_trainer(dtype=torch.float64), [batch], wants_norm=True).grad_norm
    assert seen is not None
    assert seen.item() == pytest.approx(norm.item(), rel=1e-6)

    limit = norm.item() / 4
    clipping = make_trainer(dtype=torch.float64, clip=ClipSection(kind="fixed", norm=limit))
    clipped = torch.cat([g.flatten() for g in gradients_seen(clipping, [batch])])
    assert clipped.norm().item() == pytest.approx(limit, rel=1e-5)


def test_looking_at_the_norm_does_not_clip() -> None:
    weights = []
    for wants_norm in (False, True):
        trainer = make_trainer(clip=ClipSection(kind="none"))
        one_step(trainer, [samples(4, dtype=torch.float32)], wants_norm=wants_norm)
        weights.append(weights_of(trainer))
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def test_adaptive_clipping_follows_the_quantile_of_recent_norms() -> None:
    section = ClipSection(
        kind="adaptive", norm=100.0, window=4, quantile=0.5, factor=1.5, min_norm=0.1, max_norm=50.0
    )
    clipper = make_trainer(clip=section).clipper
    norms = [4.0, 8.0, 2.0, 6.0, 10.0]
    limits = []
    for norm in norms:
        limits.append(clipper.limit().item())
        clipper.clip([torch.tensor([norm])])
    assert limits[:4] == [100.0] * 4, "until the window is full the fixed norm holds"
    assert limits[4] == pytest.approx(1.5 * 5.0)  # median of 4, 8, 2, 6
    assert clipper.limit().item() == pytest.approx(1.5 * 7.0)  # median of 10, 8, 2, 6
    clipper.clip([torch.tensor([float("nan")])])
    assert clipper.limit().item() == pytest.approx(1.5 * 7.0), "a NaN must not be remembered"


def test_the_average_is_the_exponential_mean_of_the_weights() -> None:
    trainer = make_trainer(ema=0.9)
    assert trainer.average is not None
    expected = weights_of(trainer)
    for seed in range(5):
        one_step(trainer, [samples(4, seed=seed, dtype=torch.float32)])
        expected = [0.9 * e + 0.1 * w for e, w in zip(expected, weights_of(trainer), strict=True)]
    own = weights_of(trainer)
    with trainer.average.in_place():
        for inside, wanted in zip(weights_of(trainer), expected, strict=True):
            torch.testing.assert_close(inside, wanted)
    assert all(torch.equal(a, b) for a, b in zip(own, weights_of(trainer), strict=True))


def test_a_teacher_pulls_the_student_and_stays_as_it_is() -> None:
    torch.manual_seed(5)
    teacher_model = SquareTask().build_model()
    before = [p.detach().clone() for p in teacher_model.parameters()]
    batch = samples(8, dtype=torch.float32)
    results = {}
    for weight in (None, 0.5):
        teacher = None if weight is None else Teacher(model=teacher_model, weight=weight)
        trainer = make_trainer(SquareTask(weighted=False), teacher=teacher)
        results[weight] = one_step(trainer, [batch]), weights_of(trainer)
    assert "distill" not in results[None][0].terms
    with_teacher = results[0.5][0]
    gain = with_teacher.loss - results[None][0].loss
    assert gain.item() == pytest.approx(0.5 * with_teacher.terms["distill"].item(), rel=1e-5)
    assert not torch.equal(results[None][1][0], results[0.5][1][0])
    assert all(torch.equal(a, b) for a, b in zip(before, teacher_model.parameters(), strict=True))


def test_every_part_of_the_step_has_its_span() -> None:
    sink = ListSink()
    clock = Clock(sink)
    trainer = make_trainer(accumulate=2)
    batch = samples(4, dtype=torch.float32)
    clock.begin_step()
    trainer.train_step(iter([batch, batch]), step=0, clock=clock)
    clock.close()
    [step] = sink.steps
    calls = {span.name: count for span, (count, _) in step.host_us.items()}
    assert calls == {
        "data": 2,
        "copy": 2,
        "forward": 2,
        "loss": 2,
        "backward": 2,
        "clip": 1,
        "optimizer": 1,
    }
    assert (step.samples, step.micro_steps) == (8, 2)
