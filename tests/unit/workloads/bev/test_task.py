"""The task of bird's-eye views: what becomes of the configuration, and that it trains.

What any task must keep is in tests/conformance.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pitstop.config.dump import to_yaml
from pitstop.config.load import config_from, load_config
from pitstop.config.sections import RunConfig
from pitstop.config.workloads.bev import LssModel, MonoData, SurroundData
from pitstop.data.cache.items import Key
from pitstop.errors import ConfigError
from pitstop.records.loader import CacheReading
from pitstop.records.store import decode, read_run
from pitstop.train.evaluation.pictures import draw_pictures
from pitstop.train.evaluation.trained_model import infer_checkpoint
from pitstop.train.model.compiling import CompileMonitor, apply_compile
from pitstop.train.run import TrainingRun
from pitstop.workloads.bev.data.batch import BevBatch
from pitstop.workloads.bev.data.pon import PON_CLASSES, read_labels
from pitstop.workloads.bev.data.targets import MAP_CLASSES, VEHICLE
from pitstop.workloads.bev.task import BevTask, build_bev, class_frequencies

torch.set_num_threads(1)

CONFIGS = Path(__file__).parents[4] / "configs" / "bev"
MONO = ("mono_baseline", "mono_balanced", "mono_speed", "mono_highmem")
PRESETS = (*MONO, "surround", "demo")
CPU = torch.device("cpu")

WHERE = {"version": "v1.0-mini", "split": "mini_train", "eval_split": "mini_val"}
REST: dict[str, Any] = {
    "loader": {"workers": 0},
    "train": {"batch_size": 2, "steps": 2},
    "optimizer": {"lr": 1e-3},
    "eval": {"batch_size": 2},
    "log": {"every_steps": 1},
    "checkpoint": {"every_steps": None},
}
SMALL: dict[str, dict[str, Any]] = {
    "mono": {
        **REST,
        "model": {
            "kind": "lss_swin_mono",
            "backbone": "swin_nano",
            "depth": [1, 17, 1],
            "channels": 16,
            "x_bound": [-8, 8, 1],
            "forward_bound": [1, 17, 1],
            "head_width": 32,
        },
        "data": {**WHERE, "image_size": [64, 96], "frequencies_from": 4},
    },
    "surround": {
        **REST,
        "model": {
            "kind": "lss_swin_surround",
            "backbone": "swin_nano",
            "depth": [1, 17, 1],
            "channels": 16,
            "x_bound": [-16, 16, 1],
            "forward_bound": [-16, 16, 1],
            "head_width": 16,
            "encoder_channels": 32,
        },
        "data": {
            **WHERE,
            "image_size": [64, 96],
            "resize": [0.3, 0.4],
            "target_forward": [-15, 15, 0.5],
            "target_across": [-10, 10, 0.5],
        },
    },
}


def config_of(kind: str, root: Path | None, *overrides: str) -> RunConfig:
    where = [] if root is None else [f"data.root={root}"]
    return config_from(SMALL[kind], [*where, *overrides]).config


def task_of(kind: str, root: Path | None, *overrides: str) -> BevTask:
    return build_bev(config_of(kind, root, *overrides))


def batch_of(task: BevTask, *indices: int) -> BevBatch:
    samples = task.train_samples()
    return task.collate([samples.sample(0, index) for index in indices])


def test_logits_lie_on_the_cells_of_the_targets(world_root: Path) -> None:
    for kind, shape in (("mono", (14, 32, 32)), ("surround", (7, 60, 40))):
        task = task_of(kind, world_root)
        batch = batch_of(task, 0, 1)
        assert batch.targets.shape == (2, *shape)
        assert task.forward(task.build_model(), batch).shape == (2, *shape)


@pytest.mark.parametrize(
    ("targets", "classes"),
    [
        ("map", MAP_CLASSES),
        ("vehicle", (VEHICLE,)),
        ("map+vehicle", (*MAP_CLASSES, VEHICLE)),
    ],
)
def test_targets_decide_the_classes(
    world_root: Path, targets: str, classes: tuple[str, ...]
) -> None:
    task = task_of("surround", world_root, f"data.targets={targets}")
    assert task.classes == classes
    assert batch_of(task, 0).targets.shape[1] == len(classes)
    assert f"iou_best/{classes[0]}" in task.higher_is_better


def test_one_camera_starts_from_the_frequencies_of_its_classes(world_root: Path) -> None:
    task = task_of("mono", world_root)
    samples = task.train_samples()
    rates = class_frequencies(samples, most=len(samples))
    every = [samples.sample(0, index) for index in range(len(samples))]
    seen = sum(int(sample.mask.sum()) for sample in every)
    for place in range(len(PON_CLASSES)):
        cells = sum(int((sample.targets[place] & sample.mask).sum()) for sample in every)
        assert rates[place] == pytest.approx(max(cells / seen, 1e-4))
    task = task_of("mono", world_root, f"data.frequencies_from={len(samples)}")
    bias = task.build_model().get_parameter("head.classifier.bias")
    assert torch.sigmoid(bias).tolist() == pytest.approx(rates, rel=1e-4)


def test_frequencies_come_from_as_many_samples_as_are_asked_for() -> None:
    class Counted:
        """Samples that remember what was read."""

        def __init__(self, samples: Any) -> None:
            self.samples, self.read = samples, []

        def __len__(self) -> int:
            return 100

        def sample(self, epoch: int, index: int) -> Any:
            self.read.append(index)
            return self.samples

    class One:
        targets = torch.ones(2, 2, 2, dtype=torch.uint8)
        mask = torch.tensor([[1, 0], [0, 0]], dtype=torch.uint8)

    one = One()
    one.targets[1] = 0
    counted: Any = Counted(one)
    assert class_frequencies(counted, most=4) == pytest.approx((1 - 1e-4, 1e-4))
    assert counted.read == [0, 25, 50, 75]


def test_a_network_can_be_looked_at_without_data() -> None:
    assert task_of("mono", None).build_model().settings.priors == ()


def test_calibrations_stay_on_the_host(world_root: Path) -> None:
    task = task_of("mono", world_root)
    moved = task.to_device(batch_of(task, 0), torch.device("meta"))
    assert moved.calibration.device == CPU
    assert moved.images.device.type == "meta"


def test_what_was_worked_out_in_an_evaluation_serves_training(world_root: Path) -> None:
    task = task_of("mono", world_root)
    model, batch = task.build_model(), batch_of(task, 0)
    with torch.inference_mode():
        wanted = model.locate(batch)
    got = model.locate(batch)
    assert got.ranks_bev is wanted.ranks_bev
    assert not got.ranks_bev.is_inference()


def test_a_teacher_of_the_other_kind_is_refused(world_root: Path) -> None:
    other = config_of("surround", world_root)
    with pytest.raises(ConfigError, match="the teacher is a lss_swin_surround"):
        task_of("mono", world_root).build_teacher(to_yaml(other))


@pytest.mark.parametrize("kind", ["mono", "surround"])
def test_it_trains_evaluates_writes_and_draws(world_root: Path, tmp_path: Path, kind: str) -> None:
    config = config_of(kind, world_root, f"run.work_dir={tmp_path}", "run.name=one")
    task = build_bev(config)
    outcome = TrainingRun(config=config, config_yaml=to_yaml(config), task=task).run()
    assert (outcome.status, outcome.step) == ("finished", 2)
    record = infer_checkpoint(config, task, tmp_path / "one", tmp_path / "found")
    assert record is not None
    files = sorted((tmp_path / "found").glob("*.png"))
    assert len(files) == len(task.eval_samples()) == record.samples
    found, _ = read_labels(files[0], task.grid)
    assert found.shape[1:] == task.grid.shape
    drawn = draw_pictures(config, task, tmp_path / "one", tmp_path / "one", count=2)
    assert [len(row.cells) for row in drawn.rows] == [3, 3]


@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        ("mono", "keep"),
        ("surround", "epoch"),
        pytest.param("mono", "epoch", marks=pytest.mark.slow),
        pytest.param("surround", "keep", marks=pytest.mark.slow),
    ],
)
def test_a_run_keeps_its_images_in_the_cache_of_its_host(
    world_root: Path, tmp_path: Path, kind: str, policy: str
) -> None:
    own = ("cache.budget=32MiB", f"cache.policy={policy}", "train.steps=8", "loader.workers=1")
    config = config_of(kind, world_root, f"run.work_dir={tmp_path}", "run.name=one", *own)
    task = build_bev(config)
    TrainingRun(config=config, config_yaml=to_yaml(config), task=task).run()
    record = read_run(tmp_path / "one").ranks[0]
    last = [decode(one, CacheReading) for one in record.readings if one.kind == "cache"][-1]
    keys = {key for index in range(len(task.train_samples())) for key in expected(task, index)}
    assert (last.policy, last.items) == (policy, len(keys))
    assert last.hits > 0


def expected(task: BevTask, index: int) -> Iterator[Key]:
    yield from task.train_samples().cache_keys(index)


@pytest.mark.parametrize("kind", ["mono", "surround"])
def test_what_is_compiled_by_region_has_no_hooks_of_the_clock(kind: str) -> None:
    task = task_of(kind, None)
    model = task.build_model()
    regions, parts = task.regions(model), task.parts(model)
    assert not set(regions) & set(parts.values())
    inside = {weight for region in regions for weight in region.parameters()}
    share = sum(weight.numel() for weight in inside) / sum(w.numel() for w in model.parameters())
    assert share > 0.8


@pytest.mark.slow
def test_an_evaluation_compiles_nothing(world_root: Path) -> None:
    config = config_of("mono", world_root, "train.compile.scope=whole")
    task = build_bev(config)
    model = task.build_model()
    batch = batch_of(task, 0)
    plain = task.predict(model, batch)
    apply_compile(model, config.train.compile, task.regions(model), backend="eager")
    with CompileMonitor() as watch:
        assert torch.equal(task.predict(model, batch), plain)
        assert watch.proof().graphs == 0
        task.forward(model, batch)
        assert watch.proof().graphs == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mono", "surround"])
def test_the_network_is_one_graph_behind_the_geometry(world_root: Path, kind: str) -> None:
    config = config_of(kind, world_root, "train.compile.scope=whole")
    task = build_bev(config)
    model = task.build_model()
    apply_compile(model, config.train.compile, task.regions(model), backend="eager")
    with CompileMonitor() as watch:
        for batch in (batch_of(task, 0, 1), batch_of(task, 1, 0)):
            task.forward(model, batch)
        proof = watch.proof()
    assert proof.graphs == 1
    assert proof.frames_left_eager == 0
    assert all("disable" in reason for reason in proof.breaks)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_sound_and_can_be_built(name: str) -> None:
    loaded = load_config(CONFIGS / f"{name}.yaml")
    odd = {"loader.workers"} if name == "mono_baseline" else set()
    assert {warning.key for warning in loaded.warnings} <= odd
    config = load_config(CONFIGS / f"{name}.yaml", ["data.root=null"]).config
    assert isinstance(config.model, LssModel)
    model = build_bev(config).build_model()
    assert model.settings.backbone == config.model.backbone
    assert sum(weight.numel() for weight in model.backbone.parameters()) > 1e5


def test_presets_keep_what_they_are_for() -> None:
    configs = {name: load_config(CONFIGS / f"{name}.yaml").config for name in PRESETS}
    mono = [configs[name] for name in MONO]
    samples = {c.train.batch_size * c.train.accumulate * (c.train.steps or 0) for c in mono}
    assert samples == {800_000}
    assert all(c.model.model_copy(update={"kernels": "auto"}) == mono[1].model for c in mono)
    assert {c.schedule.kind for c in mono} == {"poly"}
    baseline = configs["mono_baseline"]
    assert baseline.train.precision == "fp32"
    assert baseline.train.compile.scope == "off"
    assert baseline.model.kernels == "reference"
    assert isinstance(baseline.data, MonoData)
    surround = configs["surround"]
    assert surround.train.batch_size * surround.train.accumulate == 32
    assert isinstance(surround.data, SurroundData)
    warmed = [c.schedule.warmup_steps * c.train.batch_size for c in mono]
    assert np.ptp(warmed) / max(warmed) < 0.6


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    yield
    torch.compiler.reset()
