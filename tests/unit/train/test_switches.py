"""Each switch of the engine, set in a configuration and seen at work in a whole run.

The packages have tests of their own; these are about the wiring between a key and what it does.
"""

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from pitstop.config.dump import to_yaml
from pitstop.config.load import config_from
from pitstop.config.sections import RunConfig
from pitstop.doctor.facts import facts_of
from pitstop.doctor.rules.compute import recompute_cost
from pitstop.errors import CheckpointError, ConfigError, MissingPackage
from pitstop.records.run import RankRecord
from pitstop.records.store import read_run
from pitstop.train.model.compiling import apply_compile
from pitstop.train.model.recompute import RecomputeCall, plain_call
from pitstop.train.ranks import Ranks
from pitstop.train.run import TrainingRun
from pitstop.train.setup import build_trainer
from pitstop.train.state.checkpoint import find_newest_whole, open_checkpoint
from pitstop.train.task import Loss
from pitstop.workloads.deblur.data.dataset import ClipBatch
from pitstop.workloads.deblur.synthetic import make_clips
from pitstop.workloads.deblur.task import DeblurTask, build_deblur
from tests.saved_bytes import saved_bytes
from tests.unit.train.runs import LINE, Batch, LineMetrics, LineTask, line_config
from tests.unit.train.test_run import POISON, Diary, assert_equal_trees

torch.set_num_threads(1)

STEPS = 12


class Spy(LineTask):
    """A line that notes what happens while the model runs."""

    def __init__(self, look: Callable[[nn.Module, Batch], Any], **options: Any) -> None:
        super().__init__(**options)
        self._look = look
        self.seen: list[Any] = []

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        if model.training:
            self.seen.append(self._look(model, batch))
        return super().forward(model, batch)


def train(
    folder: Path,
    task: LineTask | None = None,
    *,
    resume: str | None = None,
    diary: Diary | None = None,
    **settings: object,
) -> RankRecord:
    """Run to the end; give the record."""
    config = line_config(folder, **settings)
    TrainingRun(
        config=config,
        config_yaml=to_yaml(config, kinds={"line": LINE}),
        task=task or LineTask(),
        observers=[] if diary is None else [diary],
        resume=resume,
    ).run()
    return read_run(folder / "run").first


def applied(record: RankRecord) -> dict[str, Any]:
    """What each setting really did, by its key; the last word counts."""
    proofs = [r.values for r in record.readings if r.kind == "applied"]
    return {values["setting"]: values["proof"] for values in proofs}


def saved_at(folder: Path, step: int) -> dict[str, Any]:
    [path] = (folder / "run" / "checkpoints").glob(f"save-*-step-{step:09d}")
    return open_checkpoint(path).common()


def last_saved(folder: Path) -> dict[str, Any]:
    checkpoint, _ = find_newest_whole(folder / "run" / "checkpoints")
    assert checkpoint is not None
    return checkpoint.common()


def values(record: RankRecord, name: str) -> list[float]:
    return record.scalars[name].value.tolist()


@pytest.fixture(autouse=True)
def _process_settings() -> Iterator[None]:
    """Leave the process as it was: precision and determinism are its own settings."""
    precision = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(precision)
    torch.use_deterministic_algorithms(mode=False)


class Products(TorchDispatchMode):
    """Notes the dtypes in which matrices are multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: set[torch.dtype] = set()
        self.host_reads = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.partition(".")[0]
        if name in {"mm", "addmm"}:
            self.dtypes.add(args[-1].dtype)
        self.host_reads += name == "_local_scalar_dense"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("precision", "dtype", "tf32"),
    [
        ("fp32", torch.float32, "highest"),
        ("tf32", torch.float32, "high"),
        ("bf16", torch.bfloat16, "high"),
        ("fp16", torch.float16, "high"),
    ],
)
def test_precision_is_the_dtype_of_every_product(
    tmp_path: Path, precision: str, dtype: torch.dtype, tf32: str
) -> None:
    task = Spy(lambda *_: torch.get_float32_matmul_precision())
    with Products() as products:
        train(tmp_path, task, train__precision=precision, train__steps=2)
    assert products.dtypes == {dtype}
    assert set(task.seen) == {tf32}


def test_the_loss_scale_starts_where_it_is_set_and_moves_as_set(tmp_path: Path) -> None:
    settings = {"start": 1024, "growth": 4.0, "growth_every_steps": 5}
    train(
        tmp_path,
        train__precision="fp16",
        **{f"train__scaler__{name}": value for name, value in settings.items()},
    )
    assert saved_at(tmp_path, 4)["precision"]["scale"].item() == 1024
    assert saved_at(tmp_path, 8)["precision"]["scale"].item() == 4 * 1024
    train(tmp_path / "high", train__precision="fp16", train__scaler__start=2.0**40, train__steps=4)
    assert last_saved(tmp_path / "high")["precision"]["scale"].item() == 2.0**36


class Block(nn.Module):
    """Attention and feed-forward through places of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(64, 64)
        self.up = nn.Linear(64, 256)
        self.down = nn.Linear(256, 64)
        self.recompute_attention: RecomputeCall = plain_call
        self.recompute_feed_forward: RecomputeCall = plain_call

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.recompute_attention(self.attend, x)
        return x + self.recompute_feed_forward(self.feed, x)

    def attend(self, x: Tensor) -> Tensor:
        return functional.dropout(self.mix(x).sigmoid().softmax(-1), 0.1, self.training)

    def feed(self, x: Tensor) -> Tensor:
        return self.down(functional.gelu(self.up(x)))


class BlockTask(LineTask):
    """A line through blocks; counts what a forward pass holds for its backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.held_bytes: list[int] = []

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(3, 64), Block(), Block(), nn.Linear(64, 1))

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        if self.held_bytes:  # once is enough, and counting takes a tenth of a second
            return model(batch[0])
        outputs: list[Tensor] = []

        def run() -> Tensor:
            outputs.append(model(batch[0]))
            return outputs[0]

        self.held_bytes.append(saved_bytes(run, ignoring=[*model.parameters(), *batch]))
        return outputs[0]

    def parts(self, model: nn.Module) -> Mapping[str, nn.Module]:
        return {}

    def regions(self, model: nn.Module) -> list[nn.Module]:
        return [module for module in model.modules() if isinstance(module, Block)]


@pytest.mark.parametrize(
    ("policy", "places"),
    [
        ("full", {"attention": 2, "feed_forward": 2}),
        ("attention", {"attention": 2}),
        ("ffn", {"feed_forward": 2}),
        ("selective", {"attention": 2, "feed_forward": 2}),
        (["1"], {"stage": 1}),
    ],
    ids=str,
)
def test_recompute_holds_less_and_changes_no_weight(
    tmp_path: Path, policy: object, places: dict[str, int]
) -> None:
    plain, task = BlockTask(), BlockTask()
    record = train(tmp_path / "plain", plain, train__steps=3)
    assert "train.recompute" not in applied(record)
    record = train(tmp_path / "less", task, train__steps=3, train__recompute=policy)
    assert applied(record)["train.recompute"]["places"] == places
    assert task.held_bytes < plain.held_bytes
    assert_equal_trees(
        last_saved(tmp_path / "plain")["model"], last_saved(tmp_path / "less")["model"]
    )


def median_us(record: RankRecord, *path: str) -> float:
    steps = record.steps
    assert steps is not None
    return float(np.median(steps.host_us[:, steps.paths.index(path)]))


def test_what_runs_again_is_in_the_record_and_takes_about_a_forward_pass(tmp_path: Path) -> None:
    class Heavy(BlockTask):
        def build_model(self) -> nn.Module:
            return nn.Sequential(nn.Linear(3, 64), *(Block() for _ in range(12)), nn.Linear(64, 1))

        def forward(self, model: nn.Module, batch: Batch) -> Tensor:
            return model(batch[0].repeat(128, 1))[: len(batch[0])]

    records = {
        policy: train(tmp_path / policy, Heavy(), train__recompute=policy)
        for policy in ("none", "full")
    }
    assert ("backward", "recompute") not in records["none"].paths
    again_us = median_us(records["full"], "backward", "recompute")
    # The same work, less what nobody needs again, on a machine that does other things as well.
    assert 0.4 < again_us / median_us(records["full"], "forward") < 1.6
    assert_equal_trees(
        last_saved(tmp_path / "none")["model"], last_saved(tmp_path / "full")["model"]
    )
    found = {policy: recompute_cost(facts_of(record)) for policy, record in records.items()}
    assert found["none"] is None
    assert found["full"] is not None


def test_recompute_policies_differ_in_what_they_hold(tmp_path: Path) -> None:
    held = {}
    for policy in ("none", "full", "attention", "ffn", "selective"):
        task = BlockTask()
        train(tmp_path / policy, task, train__steps=1, train__recompute=policy)
        held[policy] = task.held_bytes[0]
    assert held["full"] < held["ffn"] < held["attention"] < held["none"]
    assert held["full"] < held["selective"] < held["none"]


@pytest.mark.filterwarnings("default")  # the compiler warns of its own code
@pytest.mark.parametrize("scope", ["regions", "whole"])
def test_compiling_is_proven_by_its_graphs(
    tmp_path: Path, scope: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Compiled(BlockTask):
        def forward(self, model: nn.Module, batch: Batch) -> Tensor:
            return model(batch[0])

    # Without code generation, which takes half a minute and proves nothing more.
    light = partial(apply_compile, backend="eager")
    monkeypatch.setattr("pitstop.train.setup.apply_compile", light)
    torch.compiler.reset()
    plain = train(tmp_path / "plain", Compiled(), train__steps=5)
    assert "train.compile.scope" not in applied(plain)
    record = train(tmp_path / "compiled", Compiled(), train__steps=5, train__compile__scope=scope)
    proof = applied(record)["train.compile.scope"]
    assert proof["graphs"] >= 1
    assert proof["compile_s"] > 0
    assert values(record, "loss") == pytest.approx(values(plain, "loss"), rel=1e-5)
    torch.compiler.reset()


def test_a_compile_switch_that_compiles_nothing_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pitstop.train.setup.apply_compile", lambda *_: None)
    with pytest.raises(ConfigError, match="nothing was compiled"):
        train(tmp_path, train__steps=5, train__compile__scope="whole")


class Pictures(LineTask):
    """A line read off pictures, by convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.laid_out: list[bool] = []

    def build_model(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 1),
        )

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        assert isinstance(model, nn.Sequential)
        hidden = model[0](batch[0][:, :, None, None].expand(-1, -1, 4, 4))
        self.laid_out.append(hidden.is_contiguous(memory_format=torch.channels_last))
        return model[1:](hidden)


class NormedLine(LineTask):
    """The line with a batch norm."""

    def build_model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 1)
        )


def test_batch_norm_is_named_where_batches_are_split(tmp_path: Path) -> None:
    config = line_config(tmp_path, train__accumulate=2)
    setup = build_trainer(config, NormedLine(), Ranks(), torch.device("cpu"))
    assert any("batch norm (1 of them, such as 1)" in message for message in setup.messages)
    alone = build_trainer(line_config(tmp_path), NormedLine(), Ranks(), torch.device("cpu"))
    assert not any("batch norm" in message for message in alone.messages)


def test_synchronised_norms_are_counted_and_refused_where_there_are_none(tmp_path: Path) -> None:
    record = train(tmp_path / "norm", NormedLine(), train__steps=2, train__sync_norm=True)
    assert applied(record)["train.sync_norm"] == {"norms": 1, "ranks": 1, "own": True}
    with pytest.raises(ConfigError, match="has no batch norm"):
        train(tmp_path / "none", train__sync_norm=True)


def test_channels_last_lays_out_weights_and_what_they_make(tmp_path: Path) -> None:
    plain, task = Pictures(), Pictures()
    record = train(tmp_path / "plain", plain, train__steps=2)
    assert "train.channels_last" not in applied(record)
    assert not any(plain.laid_out)
    record = train(tmp_path / "last", task, train__steps=2, train__channels_last=True)
    assert applied(record)["train.channels_last"] == {"num_weights": 2}
    assert all(task.laid_out)
    with pytest.raises(ConfigError, match="channels-last has no effect"):
        train(tmp_path / "none", train__channels_last=True)


@pytest.mark.parametrize(
    ("kind", "bytes_per_weight"), [("adamw", 8), ("adam", 8), ("adamw_bf16", 4), ("sgd", 4)]
)
def test_the_optimizer_is_of_its_kind_and_its_state_is_counted(
    tmp_path: Path, kind: str, bytes_per_weight: int
) -> None:
    proof = applied(train(tmp_path, train__steps=2, optimizer__kind=kind))["optimizer.kind"]
    weights = sum(parameter.numel() for parameter in LineTask().build_model().parameters())
    assert proof["kind"] == kind
    assert proof["num_parameters"] == weights
    counters = 0 if kind == "sgd" else 4 * 6  # how often each of six tensors was updated
    assert proof["state_bytes"] == weights * bytes_per_weight + counters


def test_8bit_state_takes_a_quarter_or_names_what_is_missing(tmp_path: Path) -> None:
    if find_spec("bitsandbytes") is None and find_spec("torchao") is None:
        with pytest.raises(MissingPackage, match=r"pip install bitsandbytes"):
            train(tmp_path, optimizer__kind="adamw8bit")
        return
    full, small = (
        applied(train(tmp_path / kind, BlockTask(), train__steps=2, optimizer__kind=kind))
        for kind in ("adamw", "adamw8bit")
    )
    ratio = small["optimizer.kind"]["state_bytes"] / full["optimizer.kind"]["state_bytes"]
    assert ratio < 0.4


@pytest.mark.parametrize(("fused", "syncs"), [("auto", 0), ("off", 1)])
def test_host_syncs_are_counted_as_they_happen(tmp_path: Path, fused: str, syncs: int) -> None:
    host_reads = []
    for steps in (6, 12):
        with Products() as seen:
            record = train(
                tmp_path / str(steps),
                train__steps=steps,
                train__batch_size=1,  # one epoch: each has a read of its loader
                optimizer__kind="sgd",
                optimizer__fused=fused,
                checkpoint__every_steps=None,
            )
        host_reads.append(seen.host_reads)
        assert set(values(record, "host_syncs")) == {syncs}
    assert host_reads[1] - host_reads[0] == 6 * syncs
    assert applied(record)["optimizer.kind"]["takes_found_inf"] == (syncs == 0)


def test_seldom_logging_reads_no_more_than_often_logging(tmp_path: Path) -> None:
    host_reads = []
    for every in (1, 12):
        with Products() as seen:
            train(tmp_path / str(every), log__every_steps=every, log__norm_every_steps=every)
        host_reads.append(seen.host_reads)
    assert host_reads[0] == host_reads[1]


def test_the_average_is_saved_and_is_what_is_evaluated(tmp_path: Path) -> None:
    settings = {"optimizer__lr": 0.05, "checkpoint__every_steps": 1, "checkpoint__keep_last": 99}
    record = train(tmp_path, train__ema=0.8, eval__every_steps=None, **settings)
    first = saved_at(tmp_path, 1)["average"]
    expected = {name: value.double() for name, value in first.items()}
    for step in range(2, STEPS + 1):
        model = saved_at(tmp_path, step)["model"]
        expected = {name: 0.8 * old + 0.2 * model[name] for name, old in expected.items()}
    state = last_saved(tmp_path)
    for name, value in state["average"].items():
        torch.testing.assert_close(value.double(), expected[name], rtol=1e-5, atol=1e-6)
        assert not torch.equal(value, state["model"][name])

    def error_of(weights: dict[str, Tensor]) -> float:
        task = LineTask()
        model = task.build_model()
        model.load_state_dict(weights)
        metrics = task.metrics()
        samples = task.eval_samples()
        for index in range(len(samples)):
            batch = task.collate([samples.sample(0, index)])
            with torch.no_grad():
                metrics.update(model.eval()(batch[0]), batch)
        return metrics.result(metrics.state())["error"]

    [error] = values(record, "eval/error")
    assert error == pytest.approx(error_of(state["average"]), rel=1e-5)
    assert error != pytest.approx(error_of(state["model"]), rel=1e-3)
    train(tmp_path / "without")
    assert last_saved(tmp_path / "without")["average"] is None


@pytest.mark.parametrize(("before", "after"), [(0.9, None), (None, 0.9)])
def test_an_average_that_only_one_of_two_runs_has_is_refused(
    tmp_path: Path, before: float | None, after: float | None
) -> None:
    train(tmp_path, train__ema=before)
    with pytest.raises(CheckpointError, match=r"train\.ema is set in one of the two"):
        train(tmp_path, train__ema=after, train__steps=20, resume="auto")


@pytest.mark.parametrize("weight", [0.5, 2.0])
def test_the_distance_to_the_teacher_weighs_what_it_should(tmp_path: Path, weight: float) -> None:
    train(tmp_path / "teacher", train__steps=4)
    teacher, _ = find_newest_whole(tmp_path / "teacher" / "run" / "checkpoints")
    assert teacher is not None
    settings = {"train__distill__teacher": teacher.path, "train__distill__weight": weight}
    record = train(tmp_path / "student", **settings)
    parts = zip(values(record, "loss/square"), values(record, "loss/distill"), strict=True)
    assert values(record, "loss") == pytest.approx([own + weight * far for own, far in parts])
    assert min(values(record, "loss/distill")[1:]) > 0


def test_steps_that_are_not_finite_are_skipped_or_rolled_back(tmp_path: Path) -> None:
    # 22 samples in batches of 4 are 5 steps an epoch, so that step 5 is the first of the second.
    models = {}
    for policy in ("skip", "rollback"):
        folder = tmp_path / policy
        diary = Diary()
        train(
            folder,
            LineTask(poison=POISON),
            diary=diary,
            train__on_nan=policy,
            train__steps=6,
            checkpoint__every_steps=3,
            checkpoint__keep_last=9,
            optimizer__lr=0.05,
        )
        assert len(diary.warnings) == 1
        models[policy] = [saved_at(folder, step)["model"] for step in (3, 6)]
    assert_equal_trees(models["skip"][0], models["rollback"][0])
    assert_equal_trees(*models["rollback"])
    # Steps 3 and 4 were well; only going back undoes them.
    assert not torch.equal(models["skip"][0]["0.weight"], models["skip"][1]["0.weight"])


CURVES: Mapping[str, tuple[dict[str, Any], Callable[[int], float]]] = {
    "constant": ({}, lambda _: 1.0),
    "cosine": ({"end_factor": 0.1}, lambda s: 0.1 + 0.9 * (1 + math.cos(math.pi * s / 12)) / 2),
    "poly": ({"power": 2.0}, lambda s: (1 - s / 12) ** 2),
    "step": ({"milestones": [4, 9], "gamma": 0.5}, lambda s: 0.5 ** ((s >= 4) + (s >= 9))),
}


@pytest.mark.parametrize("kind", CURVES)
def test_the_rate_follows_its_curve_also_after_a_resume(tmp_path: Path, kind: str) -> None:
    options, factor = CURVES[kind]
    settings = {f"schedule__{name}": value for name, value in options.items()}
    settings |= {"schedule__kind": kind, "optimizer__lr": 0.01}
    whole = values(train(tmp_path / "whole", **settings), "lr")
    assert whole == pytest.approx([0.01 * factor(step) for step in range(STEPS)])

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "cut", diary=Diary(at_step={7: stop}), **settings)
    resumed = train(tmp_path / "cut", resume="auto", **settings).scalars["lr"]
    assert dict(zip(resumed.step.tolist(), resumed.value.tolist(), strict=True)) == dict(
        enumerate(whole)
    )


def test_warm_up_rises_to_the_peak(tmp_path: Path) -> None:
    settings = {"schedule__warmup_steps": 4, "schedule__warmup_start": 0.2, "optimizer__lr": 1.0}
    rates = values(train(tmp_path, **settings), "lr")
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


@pytest.mark.parametrize(("rule", "factor"), [("none", 1), ("linear", 4), ("sqrt", 2)])
def test_the_rate_is_scaled_with_the_effective_batch_and_it_is_said(
    tmp_path: Path, rule: str, factor: float
) -> None:
    diary = Diary()
    settings = {"train__accumulate": 4, "optimizer__lr": 0.01, "optimizer__lr_scaling": rule}
    record = train(tmp_path, diary=diary, train__steps=2, **settings)
    assert values(record, "lr") == pytest.approx([0.01 * factor] * 2)
    assert diary.start is not None
    assert diary.start.effective_batch == 16
    assert any("effective batch 16" in message for message in diary.start.messages)


def test_parts_of_the_model_may_learn_at_rates_of_their_own(tmp_path: Path) -> None:
    rates = {"optimizer__lr": 0.01, "optimizer__lr_multipliers": {"4.weight": 1e-3}}
    settings = {"checkpoint__every_steps": 2, "train__steps": 6, "checkpoint__keep_last": 9}
    train(tmp_path, **settings, **rates, optimizer__weight_decay=0.0)
    early, late = (saved_at(tmp_path, step)["model"] for step in (2, 6))
    moved = {name: (late[name] - early[name]).abs().max().item() for name in early}
    # Adam's steps are about as long as the rate.
    assert moved["4.weight"] < 0.01 * moved["3.weight"]


def update_norms(folder: Path, *, steps: int) -> list[float]:
    """Length of each step's change of the weights, from the second on."""
    models = [saved_at(folder, step)["model"] for step in range(1, steps + 1)]
    flat = [torch.cat([value.flatten() for value in model.values()]) for model in models]
    return [(after - before).double().norm().item() for before, after in pairwise(flat)]


PLAIN_SGD: Mapping[str, Any] = {
    "optimizer__kind": "sgd",
    "optimizer__momentum": 0.0,
    "optimizer__weight_decay": 0.0,
    "optimizer__lr": 0.01,
    "log__norm_every_steps": 1,
    "checkpoint__every_steps": 1,
    "checkpoint__keep_last": 99,
}


def limits_of(kind: str, norms: list[float]) -> list[float]:
    """By the words of the configuration: no limit, a fixed one, or a quantile of recent norms."""
    if kind == "none":
        return [math.inf] * len(norms)
    if kind == "fixed":
        return [0.3] * len(norms)
    window = [np.quantile(norms[s - 4 : s], 0.25) if s >= 4 else None for s in range(len(norms))]
    return [0.3 if usual is None else min(max(0.9 * usual, 0.01), 2.0) for usual in window]


@pytest.mark.parametrize("kind", ["none", "fixed", "adaptive"])
def test_updates_are_as_long_as_clipping_lets_them(tmp_path: Path, kind: str) -> None:
    clip: dict[str, Any] = {"kind": kind}
    if kind != "none":
        clip["norm"] = 0.3
    if kind == "adaptive":
        clip |= {"window": 4, "quantile": 0.25, "factor": 0.9, "min_norm": 0.01, "max_norm": 2.0}
    settings = {f"train__clip__{name}": value for name, value in clip.items()}
    record = train(tmp_path, **PLAIN_SGD, **settings)
    norms = values(record, "grad_norm")
    assert len(norms) == STEPS
    assert min(norms) > 0.3, "nothing here would be clipped"
    limits = limits_of(kind, norms)
    wanted = [0.01 * min(norm, limit) for norm, limit in zip(norms, limits, strict=True)]
    assert update_norms(tmp_path, steps=STEPS) == pytest.approx(wanted[1:], rel=1e-3)


def test_terms_of_the_loss_have_a_cadence_of_their_own(tmp_path: Path) -> None:
    class Rare(LineTask):
        def loss(self, output: Tensor, batch: Batch, step: int) -> Loss:
            loss = super().loss(output, batch, step)
            if step % 5:
                return loss
            rare = output.abs().sum()
            return Loss(loss.total + rare, loss.count, {**loss.terms, "rare": rare.detach()})

    record = train(tmp_path, Rare(), train__accumulate=2)
    assert record.scalars["loss/rare"].step.tolist() == [0, 5, 10]


def test_accumulation_takes_its_micro_batches(tmp_path: Path) -> None:
    task = Spy(lambda _, batch: len(batch[0]))
    record = train(tmp_path, task, train__steps=3, train__accumulate=4, train__batch_size=2)
    assert task.seen == [2] * 12
    assert record.steps is not None
    assert [(step.samples, step.micro_steps) for step in record.steps] == [(8, 4)] * 3


def test_accumulating_a_loss_that_pairs_samples_is_never_called_equal(tmp_path: Path) -> None:
    class Paired(LineTask):
        loss_is_separable = False

    diary = Diary()
    train(tmp_path, Paired(), diary=diary, train__accumulate=2, train__steps=2)
    assert diary.start is not None
    assert any("is not a batch of 8" in message for message in diary.start.messages)


def test_the_seed_decides_weights_and_order(tmp_path: Path) -> None:
    seen = {}
    for name, seed in (("one", 1), ("two", 2), ("again", 1)):
        task = Spy(lambda model, batch: (next(model.parameters()).tolist(), batch[0].tolist()))
        train(tmp_path / name, task, run__seed=seed, train__steps=1)
        [seen[name]] = task.seen
    assert seen["one"] == seen["again"]
    for one, two in zip(seen["one"], seen["two"], strict=True):
        assert one != two


@pytest.mark.parametrize("deterministic", [True, False])
def test_determinism_is_switched_for_the_process(tmp_path: Path, deterministic: bool) -> None:
    task = Spy(lambda *_: torch.are_deterministic_algorithms_enabled())
    train(tmp_path, task, run__deterministic=deterministic, train__steps=1)
    assert task.seen == [deterministic]


@pytest.mark.parametrize(
    ("drop_last", "sizes"), [(True, [4] * 10), (False, [4, 4, 4, 4, 4, 2] * 2)]
)
def test_a_last_batch_that_is_not_full_is_dropped_or_kept(
    tmp_path: Path, drop_last: bool, sizes: list[int]
) -> None:
    task = Spy(lambda _, batch: len(batch[0]))
    train(tmp_path, task, train__steps=None, train__epochs=2, loader__drop_last=drop_last)
    assert task.seen == sizes


def test_workers_are_as_many_as_asked_for(tmp_path: Path) -> None:
    settings = {"workers": 2, "prefetch": 3, "persistent": False, "start_method": "fork"}
    named = {f"loader__{name}": value for name, value in settings.items()}
    record = train(tmp_path, train__steps=2, loader__eval_workers=0, **named)
    assert settings.items() <= applied(record)["loader.workers"].items()


def test_evaluation_batches_have_their_own_size(tmp_path: Path) -> None:
    class Sizes(LineTask):
        def __init__(self) -> None:
            super().__init__()
            self.sizes: list[int] = []

        def forward(self, model: nn.Module, batch: Batch) -> Tensor:
            if not model.training:
                self.sizes.append(len(batch[0]))
            return super().forward(model, batch)

    task = Sizes()
    train(tmp_path, task, train__steps=1, eval__batch_size=3)
    assert task.sizes == [3, 3, 1]


def test_only_the_latest_checkpoints_are_kept(tmp_path: Path) -> None:
    train(tmp_path, checkpoint__every_steps=2, checkpoint__keep_last=2)
    kept = sorted(path.name[-2:] for path in (tmp_path / "run" / "checkpoints").glob("save-*"))
    assert kept == ["10", "12"]


def test_the_best_checkpoint_by_its_metric_is_kept_beside_the_last(tmp_path: Path) -> None:
    class Scripted(LineMetrics):
        errors = iter([3.0, 1.0, 2.0, 5.0])

        def result(self, state: Tensor) -> dict[str, float]:
            return {"error": next(self.errors)}

    class Judged(LineTask):
        def metrics(self) -> LineMetrics:
            return Scripted()

    every: dict[str, Any] = {
        "eval__every_steps": 3,
        "checkpoint__every_steps": 3,
        "checkpoint__keep_last": 1,
    }
    train(tmp_path, Judged(), checkpoint__best_of="error", **every)
    kept = sorted(path.name[-2:] for path in (tmp_path / "run" / "checkpoints").glob("save-*"))
    assert kept == ["06", "12"]


class FakeSummaryWriter:
    """Stands where TensorBoard's writer would."""

    written: list[tuple[str, float, int]]
    closed = 0

    def __init__(self, folder: str) -> None:
        assert folder.endswith("tensorboard")

    def add_scalar(self, name: str, value: float, step: int) -> None:
        type(self).written.append((name, value, step))

    def close(self) -> None:
        type(self).closed += 1


def test_tensorboard_gets_the_values_of_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("torch.utils.tensorboard.writer")
    module.SummaryWriter = FakeSummaryWriter  # type: ignore[attr-defined]
    package = ModuleType("torch.utils.tensorboard")
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", package)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", module)
    FakeSummaryWriter.written = []
    train(tmp_path / "without")
    assert FakeSummaryWriter.written == []
    record = train(tmp_path / "with", log__tensorboard=True)
    losses = [value for name, value, _ in FakeSummaryWriter.written if name == "loss"]
    assert losses == values(record, "loss")
    assert "eval/error" in {name for name, _, _ in FakeSummaryWriter.written}
    assert FakeSummaryWriter.closed == 1


def test_without_tensorboard_the_flag_names_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", None)
    with pytest.raises(MissingPackage, match=r"pip install tensorboard"):
        train(tmp_path, log__tensorboard=True)


class ClipSizes(DeblurTask):
    """Deblurring that notes how large the clips are that it trains on."""

    sizes: list[tuple[int, int]]

    def forward(self, model: nn.Module, batch: ClipBatch) -> Tensor:
        if model.training:
            self.sizes.append((batch.blur.shape[-2], batch.blur.shape[-1]))
        return super().forward(model, batch)


def small_deblur(root: Path, work_dir: Path, **train_settings: object) -> RunConfig:
    model = {
        "kind": "vrt",
        "depths": [1] * 8,
        "embed_dims": [4] * 8,
        "heads": 1,
        "window": [2, 4, 4],
        "indep_reconsts": [],
        "deformable_groups": 1,
    }
    settings = {
        "run": {"work_dir": str(work_dir)},
        "model": model,
        "data": {"root": str(root), "crop": 32, "eval_crop": 32, "clip_len": 2},
        "loader": {"workers": 0},
        "train": {"epochs": 3, **train_settings},
    }
    return config_from(settings).config


def test_crops_grow_by_epoch_in_a_whole_run(tmp_path: Path) -> None:
    clips = tmp_path / "clips"
    make_clips(clips, clips={"train": 1, "test": 1}, frames=3, size=(48, 64), seed=0, spikes=False)
    config = small_deblur(clips, tmp_path, crop_schedule={1: 40, 2: 48})
    task = build_deblur(config)
    task.__class__ = ClipSizes
    assert isinstance(task, ClipSizes)
    task.sizes = []
    TrainingRun(config=config, config_yaml=to_yaml(config), task=task).run()
    assert task.sizes == [(32, 32)] * 2 + [(40, 40)] * 2 + [(48, 48)] * 2
