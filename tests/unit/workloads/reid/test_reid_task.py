"""The task of re-identification: what becomes of the configuration, and that it trains.

What any task must keep is in tests/conformance.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pitstop.config.dump import to_yaml
from pitstop.config.load import config_from, load_config
from pitstop.config.sections import RunConfig
from pitstop.data.loader.batches import build_loader
from pitstop.data.sampling.pk_sampler import PKSampler
from pitstop.data.sampling.samplers import Deal, ShuffledBatches
from pitstop.errors import CheckpointError, ConfigError, DataError
from pitstop.train.evaluation.quality import evaluate
from pitstop.train.evaluation.trained_model import evaluate_checkpoint, infer_checkpoint
from pitstop.train.optim.precision import Precision
from pitstop.train.ranks import Ranks
from pitstop.train.run import TrainingRun
from pitstop.train.setup import build_trainer
from pitstop.train.state.checkpoint import find_newest_whole
from pitstop.train.task import Submission
from pitstop.workloads.reid.data.batch import ReidBatch
from pitstop.workloads.reid.data.dataset import load_people
from pitstop.workloads.reid.data.queries import eval_set
from pitstop.workloads.reid.protocol import Gallery, evaluate_protocol
from pitstop.workloads.reid.synthetic.make import make_reid
from pitstop.workloads.reid.task import ReidTask, build_reid
from tests.unit.workloads.reid.people_files import write_people

torch.set_num_threads(1)

CONFIGS = Path(__file__).parents[4] / "configs" / "reid"
CPU = torch.device("cpu")
DEAL = Deal(batch_size=8, seed=3, rank=0, world_size=1, drop_last=True)

SMALL: dict[str, Any] = {
    "model": {
        "kind": "clip_reid",
        "backbone": "tiny",
        "embed_dim": 16,
        "fusion_heads": 2,
        "text_len": 12,
    },
    "data": {"image_size": [32, 16], "holdout": 0},
    "loader": {"workers": 0},
    "train": {"batch_size": 8, "steps": 4},
    "optimizer": {"lr": 1e-3},
    "eval": {"batch_size": 16},
    "log": {"every_steps": 1},
    "checkpoint": {"every_steps": 2},
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task") / "people"
    make_reid(folder, people=15, images=10, size=(48, 32), seed=1)
    return folder


def config_of(root: Path, *overrides: str) -> RunConfig:
    pk = () if "data.sampler=shuffle" in overrides else ("data.records_per_id=2",)
    return config_from(SMALL, [f"data.root={root}", *pk, *overrides]).config


def task_of(root: Path, *overrides: str) -> ReidTask:
    return build_reid(config_of(root, *overrides))


def test_the_model_is_made_for_the_people_and_words_of_the_dataset(root: Path) -> None:
    task = task_of(root, "model.lora_rank=3")
    model = task.build_model()
    samples = task.train_samples()
    assert model.neck.classifier.weight.shape == (samples.people, 16)
    assert model.text.words.num_embeddings == samples.tokenizer.vocab_size
    assert model.text.end_token == samples.tokenizer.end_id
    assert model.patches.grid == (4, 2)
    assert model.trunk.blocks[0].qkv.adapter_down.shape == (4, 3, 3, 64)  # type: ignore[union-attr]


def test_batches_are_of_people_and_say_their_number(root: Path) -> None:
    task = task_of(root)
    samples = task.train_samples()
    batches = task.train_batches(samples, DEAL)
    assert isinstance(batches, PKSampler)
    drawn = list(batches.rest())
    assert len(drawn) == len(batches) == len(samples) // 8
    for indices in drawn:
        people, counts = np.unique(samples.persons[indices], return_counts=True)
        assert (len(people), set(counts)) == (4, {2})


def test_records_can_be_shuffled_instead(root: Path) -> None:
    task = task_of(root, "data.sampler=shuffle")
    batches = task.train_batches(task.train_samples(), DEAL)
    assert isinstance(batches, ShuffledBatches)
    assert len(batches) == len(task.train_samples()) // 8


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ["train.batch_size=64"],
            r"takes 32 different people \(train.batch_size 64 .* has 9 people to train on; lower",
        ),
        (["data.root=null"], "data.root is not set"),
    ],
)
def test_what_cannot_be_had_is_said_in_one_line(
    root: Path, overrides: list[str], said: str
) -> None:
    config = config_of(root, *overrides)
    task = build_reid(config)
    deal = Deal(batch_size=config.train.batch_size, seed=0, rank=0, world_size=1, drop_last=True)
    with pytest.raises((ConfigError, DataError), match=said) as caught:
        task.train_batches(task.train_samples(), deal)
    assert "\n" not in str(caught.value)


def test_the_epoch_of_a_step_decides_the_weights(root: Path) -> None:
    task = task_of(
        root,
        "loss.sdm.weight_by_epoch={0: 0, 2: 1}",
        "train.accumulate=2",
        "data.epoch_unit=steps",
        "data.epoch_steps=6",
    )
    task.train_batches(task.train_samples(), DEAL)
    model, batch = task.build_model(), _batch(task)
    output = task.forward(model, batch)

    def has_weight(step: int) -> bool:
        loss = task.loss(output, batch, step)
        return not torch.isclose(loss.total / loss.count, loss.terms["id"]).item()

    # Six batches an epoch, two a step: the third epoch begins with step 6.
    assert [has_weight(step) for step in (0, 5, 6, 100)] == [False, False, True, True]


def _batch(task: ReidTask, count: int = 8) -> ReidBatch:
    samples = task.train_samples()
    return task.collate([samples.sample(0, index) for index in range(count)])


def test_single_records_train_as_well(root: Path) -> None:
    task = task_of(root, "data.records=single")
    samples = task.train_samples()
    batches = task.train_batches(samples, DEAL)
    batch = task.collate([samples.sample(0, index) for index in next(batches.rest())])
    assert batch.present.sum(dim=1).tolist() == [1] * 8
    loss = task.loss(task.forward(task.build_model(), batch), batch, 0)
    loss.total.backward()
    assert torch.isfinite(loss.total)


def test_a_frozen_backbone_learns_nothing_and_the_rest_does(root: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="random weights would stay random"):
        config_of(root, "model.freeze_backbone=true")
    task = task_of(root)
    model = task.build_model()
    for parameter in model.backbone_parameters():
        parameter.requires_grad = False
    task.loss(task.forward(model, _batch(task)), _batch(task), 0).total.backward()
    learned = {name for name, p in model.named_parameters() if p.grad is not None}
    assert any("adapter_up" in name for name in learned)
    assert not any("qkv.weight" in name for name in learned if name.startswith("trunk"))


def test_accumulation_is_said_not_to_be_the_large_batch(root: Path) -> None:
    config = config_of(root, "train.accumulate=2")
    setup = build_trainer(config, build_reid(config), Ranks(), CPU)
    assert any("is not a batch of 16" in message for message in setup.messages)


def test_an_evaluation_searches_with_what_the_model_encodes(root: Path) -> None:
    config = config_of(root)
    task = build_reid(config)
    torch.manual_seed(0)
    model = task.build_model()
    samples = task.eval_samples()
    whole = [samples.sample(0, index) for index in range(len(samples))]
    halves = [task.collate(whole[:5]), task.collate(whole[5:])]
    model.train()
    found = evaluate(
        task, model, halves, precision=Precision("fp32", CPU), device=CPU, ranks=Ranks()
    )
    assert model.training

    people = load_people(config.data)  # type: ignore[arg-type]
    wanted_set = eval_set(people, config.data, text_len=12)  # type: ignore[arg-type]
    images = wanted_set.images
    model.eval()
    with torch.no_grad():
        tokens = []
        for index in range(len(images)):
            batch = task.collate([images.sample(0, index)])
            encoded = model.encode(batch.images, batch.present, batch.tokens)
            tokens.append(encoded[0, int(images.modalities[index])])
        gallery = Gallery(items=images.gallery, persons=images.persons[images.gallery])
        wanted = evaluate_protocol(torch.stack(tokens), gallery, wanted_set.tasks, model.describe)
    assert found == pytest.approx(wanted.named() | wanted.by_task(), abs=1e-6)
    assert set(found) == set(task.higher_is_better)


def test_with_flip_testing_a_mirror_image_is_the_image(root: Path) -> None:
    task = task_of(root, "data.flip_test=true")
    torch.manual_seed(0)
    model = task.build_model().eval()
    samples = task.eval_samples()
    batch = task.collate([samples.sample(0, place) for place in range(4)])
    mirrored = replace(batch, images=batch.images.flip(-1))
    plain = task_of(root)
    with torch.no_grad():
        once, other = (task.predict(model, one).tokens for one in (batch, mirrored))
        torch.testing.assert_close(once, other)
        images = batch.present.clone()
        images[:, -1] = False
        alone, turned = (plain.predict(model, one).tokens for one in (batch, mirrored))
    assert not torch.allclose(alone[images], turned[images])
    torch.testing.assert_close(once[images], (alone + turned)[images] / 2)
    assert torch.equal(once[:, -1], alone[:, -1])


def test_re_ranking_changes_the_scores(root: Path) -> None:
    scores = []
    for settings in ((), ("data.rerank=true", "data.rerank_k1=5")):
        task = task_of(root, "data.holdout=0.4", *settings)
        torch.manual_seed(0)
        model = task.build_model()
        scores.append(evaluated(task, model))
    assert scores[0].keys() == scores[1].keys()
    assert scores[0]["mAP_one"] != scores[1]["mAP_one"]


def evaluated(task: ReidTask, model: torch.nn.Module) -> dict[str, float]:
    batches = [task.collate([sample]) for sample in all_samples(task)]
    precision = Precision("fp32", CPU, config_from(SMALL).config.train.scaler)
    return evaluate(task, model, batches, precision=precision, device=CPU, ranks=Ranks())


def all_samples(task: ReidTask) -> list[Any]:
    samples = task.eval_samples()
    return [samples.sample(0, place) for place in range(len(samples))]


def test_an_evaluation_can_be_handed_in(root: Path, tmp_path: Path) -> None:
    config = config_of(root, "data.holdout=0.4", f"run.work_dir={tmp_path}", "run.name=run")
    task = build_reid(config)
    torch.save(task.build_model().state_dict(), tmp_path / "model.pth")
    submission = Submission(path=tmp_path / "answers.csv", top=5, style="keys")
    record = evaluate_checkpoint(
        config, build_reid(config), tmp_path / "model.pth", submission=submission
    )
    assert record is not None
    assert "score" in record.metrics
    assert record.notes[-1].startswith(f"{tmp_path / 'answers.csv'} has 5 of ")
    header, *rows = (tmp_path / "answers.csv").read_text().splitlines()
    assert header == "query_key,ranked_gallery_ids"
    people = load_people(config.data)  # type: ignore[arg-type]
    queries = eval_set(people, config.data, text_len=12).tasks  # type: ignore[arg-type]
    assert len(rows) == sum(map(len, queries))


def test_a_teacher_with_other_features_is_refused(root: Path) -> None:
    other = config_of(root, "model.embed_dim=8")
    with pytest.raises(ConfigError, match=r"features have 8 numbers and this model's 16"):
        task_of(root).build_teacher(to_yaml(other))


def _run(config: RunConfig, resume: str | None = None) -> dict[str, torch.Tensor]:
    task = build_reid(config)
    run: TrainingRun[ReidBatch] = TrainingRun(
        config=config, config_yaml=to_yaml(config), task=task, resume=resume
    )
    run.run()
    checkpoint, _ = find_newest_whole(run.folder / "checkpoints")
    assert checkpoint is not None
    return checkpoint.common()["model"]


def test_a_resumed_run_ends_with_the_same_weights(root: Path, tmp_path: Path) -> None:
    settings = (f"run.work_dir={tmp_path}", "schedule.kind=constant")
    whole = _run(config_of(root, *settings, "run.name=whole"))
    _run(config_of(root, *settings, "run.name=parts", "train.steps=2"))
    parts = _run(config_of(root, *settings, "run.name=parts"), resume="auto")
    for name, weight in whole.items():
        torch.testing.assert_close(parts[name], weight, rtol=0, atol=0)


def test_a_trained_model_searches_a_folder(root: Path, tmp_path: Path) -> None:
    config = config_of(root, f"run.work_dir={tmp_path}", "train.steps=1")
    with pytest.raises(ConfigError, match=r"set data.queries to a folder"):
        build_reid(config).names_files()
    _run(config)
    asked = config_of(root, f"data.queries={root / 'nir'}", f"data.gallery={root / 'vis'}")
    record = infer_checkpoint(
        asked, build_reid(asked), tmp_path / config.run.name, tmp_path / "found"
    )
    assert record is not None
    reported = json.loads((tmp_path / "found" / "rankings.json").read_text())
    assert record.samples == len(list((root / "nir").rglob("*.jpg")))
    assert "mAP" in record.notes[-1]
    assert reported


@pytest.mark.slow
def test_batches_of_spawned_workers_are_those_of_this_process(root: Path) -> None:
    def drawn(*overrides: str) -> Iterator[ReidBatch]:
        config = config_of(root, *overrides)
        task = build_reid(config)
        samples = task.train_samples()
        order = task.train_batches(samples, DEAL)
        with build_loader(samples, order, task.collate, config.loader) as loader:
            for batch, _ in loader:
                yield batch

    here = list(drawn())
    there = list(drawn("loader.workers=1", "loader.start_method=spawn", "loader.pin=false"))
    assert len(here) == len(there) > 1
    for one, other in zip(here, there, strict=True):
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.rows, other.rows)


@pytest.mark.parametrize("name", ["baseline", "fast", "speed", "demo"])
def test_a_preset_is_a_configuration_without_warnings(name: str) -> None:
    loaded = load_config(CONFIGS / f"{name}.yaml")
    assert loaded.warnings == ()
    assert build_reid(loaded.config).loss_is_separable is False


def test_baseline_and_fast_train_the_same_thing() -> None:
    baseline, fast = (load_config(CONFIGS / f"{name}.yaml").config for name in ("baseline", "fast"))
    assert baseline.data == fast.data
    assert baseline.loss == fast.loss
    assert baseline.schedule == fast.schedule
    assert baseline.train.batch_size == fast.train.batch_size
    assert baseline.optimizer.lr_multipliers == fast.optimizer.lr_multipliers


def test_speed_sees_the_same_records_in_half_the_updates() -> None:
    fast, speed = (load_config(CONFIGS / f"{name}.yaml").config for name in ("fast", "speed"))
    assert speed.train.batch_size == 2 * fast.train.batch_size
    assert speed.train.epochs == fast.train.epochs
    assert (speed.data, speed.model, speed.loss) == (fast.data, fast.model, fast.loss)
    for of in ("schedule.warmup_steps", "eval.every_steps", "checkpoint.every_steps"):
        section, _, name = of.partition(".")
        slow, quick = (getattr(getattr(each, section), name) for each in (fast, speed))
        assert 2 * quick - slow in (0, 1), of


@pytest.mark.slow
def test_the_demo_learns(root: Path, tmp_path: Path) -> None:
    overrides = [f"data.root={root}", f"run.work_dir={tmp_path}", "train.steps=60"]
    overrides += ["eval.every_steps=null", "checkpoint.best_of=null", "checkpoint.every_steps=null"]
    config = load_config(CONFIGS / "demo.yaml", overrides).config
    losses: list[float] = []

    class Losses:
        def __getattr__(self, name: str) -> Any:
            return lambda *_: None

        def values(self, step: int, values: dict[str, float]) -> None:
            losses.append(values["loss"])

    task = build_reid(config)
    TrainingRun(config=config, config_yaml=to_yaml(config), task=task, observers=(Losses(),)).run()  # type: ignore[arg-type]
    assert np.mean(losses[-3:]) < 0.9 * losses[0]


def test_a_term_that_nobody_has_a_pair_for_is_an_error(tmp_path: Path) -> None:
    root = write_people(tmp_path, {f"000{n}": {"rgb": 2} for n in range(6)}, notes=[])
    task = task_of(root)
    with pytest.raises(DataError, match=r"nothing to compare; set loss\.sdm\.weight=0"):
        task.train_batches(task.train_samples(), DEAL)
    without = task_of(root, "loss.sdm.weight=0")
    assert len(without.train_batches(without.train_samples(), DEAL)) == 1


def test_too_few_people_with_pairs_are_counted(tmp_path: Path) -> None:
    people = {f"000{n}": {"rgb": 2} for n in range(6)} | {"0009": {"rgb": 1, "sk": 1}}
    task = task_of(write_people(tmp_path, people, notes=[]), "data.require_pair=true")
    with pytest.raises(DataError, match=r"has 1 people with both .*data\.require_pair=false"):
        task.train_batches(task.train_samples(), DEAL)


@pytest.mark.parametrize("kind", ["anchored", "single"])
@pytest.mark.parametrize("unit", ["records", "identities"])
@pytest.mark.parametrize("world_size", [1, 2])
def test_length_rows_and_report_of_an_epoch_agree(
    root: Path, kind: str, unit: str, world_size: int
) -> None:
    task = task_of(root, f"data.records={kind}", f"data.epoch_unit={unit}")
    samples = task.train_samples()
    together = 8 * world_size
    rows, lengths = 0, set[int]()
    for rank in range(world_size):
        deal = Deal(batch_size=8, seed=3, rank=rank, world_size=world_size, drop_last=True)
        batches = task.train_batches(samples, deal)
        assert isinstance(batches, PKSampler)
        report = batches.report()
        handed_out = list(batches)
        lengths |= {len(handed_out), len(batches), report.batches}
        rows += sum(map(len, handed_out))
    assert lengths == {rows // together}
    wanted = len(samples) if unit == "records" else samples.people * 2
    assert rows == max(1, wanted // together) * together


def test_weights_that_read_other_words_are_refused(root: Path, tmp_path: Path) -> None:
    """As many words under other numbers: every shape fits, and every caption would be misread."""
    other = Path(shutil.copytree(root, tmp_path / "other"))
    path = other / "train_annos.json"
    notes = json.loads(path.read_text())
    path.write_text(json.dumps([note | {"caption": note["caption"][::-1]} for note in notes]))
    trained, mistaken = task_of(root).build_model(), task_of(other).build_model()
    shapes = [{k: v.shape for k, v in m.state_dict().items()} for m in (trained, mistaken)]
    assert shapes[0] == shapes[1]
    with pytest.raises(CheckpointError, match="trained on captions with other words"):
        mistaken.load_state_dict(trained.state_dict())
    task_of(root).build_model().load_state_dict(trained.state_dict())
