"""What any task must keep for the engine's promises to hold; a workload adds a case and passes.

Exact resume needs samples that depend on seed, epoch and index alone. Accumulation that equals the
large batch needs losses that add up. Evaluation over ranks needs states that add up. Spans,
compiling and recomputing need parts and regions that are what they are said to be.
"""

import pickle
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from pitstop.config.dump import to_yaml
from pitstop.config.load import config_from
from pitstop.config.sections import RunConfig
from pitstop.train.task import Metrics, Samples, SeesModel, Task, predict
from pitstop.workloads.catalogue import build_task

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A task at its smallest: at least two samples to train on, and two to evaluate on."""

    name: str
    configure: Callable[[Path], RunConfig]
    """Takes an empty folder for data."""
    batch_size: int
    on_host: frozenset[str] = frozenset()
    """Parts of a batch that stay on the host, because the model asks it about them."""
    lacks_classes: bool = False
    """Whether its few samples lack some of what metrics have a number for."""


def small_deblur(folder: Path) -> RunConfig:
    from pitstop.workloads.deblur.synthetic import make_clips

    root = folder / "clips"
    make_clips(root, clips={"train": 2, "test": 2}, frames=3, size=(16, 32), seed=0)
    model = {
        "kind": "vrt",
        # Blocks of both kinds in each stage, so that no weight is left out.
        "depths": [2] * 9,
        "embed_dims": [8] * 9,
        "heads": 2,
        "window": [2, 4, 4],
        "indep_reconsts": [8],
        "deformable_groups": 2,
    }
    data = {"root": str(root), "crop": 16, "clip_len": 2}
    settings = {"model": model, "data": data, "train": {"steps": 1, "batch_size": 2}}
    return config_from(settings).config


def deblur_with_spikes(folder: Path, *, fusion: str) -> RunConfig:
    plain = small_deblur(folder)
    settings = yaml.safe_load(to_yaml(plain))
    settings["model"]["kind"] = "vrt_spike"
    settings["model"]["fusion"] = {"kind": fusion}
    if fusion == "cross_attention":
        settings["model"]["spike"] = {"channels": 8, "heads": 2}
        settings["model"]["fusion"]["heads"] = 2
    settings["data"] |= {"spike_height": 8, "spike_width": 16, "voxel_bins": 3}
    return config_from(settings).config


def small_reid(folder: Path) -> RunConfig:
    from pitstop.workloads.reid.synthetic.make import make_reid

    root = folder / "people"
    make_reid(root, people=12, images=8, size=(48, 32), seed=0)
    settings = {
        "model": {"kind": "clip_reid", "backbone": "tiny", "embed_dim": 16, "text_len": 12},
        "data": {"root": str(root), "image_size": [32, 16], "holdout": 0, "records_per_id": 2},
        "train": {"steps": 1, "batch_size": 4},
    }
    return config_from(settings).config


def small_bev(folder: Path) -> RunConfig:
    from pitstop.workloads.bev.synthetic.make import make_bev

    root = folder / "world"
    make_bev(root, scenes=2, samples=2, size=(225, 400), seed=0)
    settings = {
        "model": {
            "kind": "lss_swin_surround",
            "backbone": "swin_nano",
            "depth": [1, 17, 1],
            "channels": 16,
            "x_bound": [-32, 32, 2],
            "forward_bound": [-32, 32, 2],
            "head_width": 16,
            "encoder_channels": 32,
            # What is left out at random gets no gradient.
            "drop_path": 0,
        },
        "data": {
            "root": str(root),
            "version": "v1.0-mini",
            "split": "mini_train",
            "eval_split": "mini_val",
            "image_size": [64, 96],
            "resize": [0.3, 0.4],
            "target_forward": [-30, 30, 1],
            "target_across": [-30, 30, 1],
        },
        "train": {"steps": 1, "batch_size": 2},
    }
    return config_from(settings).config


def small_bev_mono(folder: Path) -> RunConfig:
    settings = yaml.safe_load(to_yaml(small_bev(folder)))
    settings["model"] = {
        "kind": "lss_swin_mono",
        "backbone": "swin_nano",
        "depth": [1, 17, 1],
        "channels": 16,
        "x_bound": [-8, 8, 1],
        "forward_bound": [1, 17, 1],
        "head_width": 32,
    }
    shared = ("root", "version", "split", "eval_split", "image_size")
    settings["data"] = {name: settings["data"][name] for name in shared}
    del settings["loss"]
    return config_from(settings).config


CASES = (
    Case(name="bev", configure=small_bev, batch_size=2, on_host=frozenset({"calibration"})),
    Case(
        name="bev from one camera",
        configure=small_bev_mono,
        batch_size=2,
        on_host=frozenset({"calibration"}),
        lacks_classes=True,
    ),
    Case(
        name="reid",
        configure=small_reid,
        batch_size=4,
        on_host=frozenset({"present_on_host"}),
    ),
    Case(name="deblur", configure=small_deblur, batch_size=2),
    Case(
        name="deblur with spikes",
        configure=partial(deblur_with_spikes, fusion="cross_attention"),
        batch_size=2,
    ),
    Case(
        name="deblur with early spikes",
        configure=partial(deblur_with_spikes, fusion="early"),
        batch_size=2,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A case, built."""

    case: Case
    config: RunConfig
    task: Task[Any]
    model: nn.Module
    batch_size: int

    def samples(self, count: int, *, epoch: int = 0) -> list[Any]:
        train = self.task.train_samples()
        return [train.sample(epoch, index) for index in range(count)]

    def output(self, batch: Any) -> Any:
        self.model.eval()
        with torch.no_grad():
            return self.task.forward(self.model, batch)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    torch.set_num_threads(1)
    case: Case = request.param
    config = case.configure(tmp_path_factory.mktemp(case.name))
    task = build_task(config)
    torch.manual_seed(0)
    model = task.build_model()
    return Bench(case=case, config=config, task=task, model=model, batch_size=case.batch_size)


def leaves(thing: Any) -> Iterator[Any]:
    """Everything in a sample or batch, whatever it is built of."""
    if hasattr(thing, "__dataclass_fields__"):
        for name in thing.__dataclass_fields__:
            yield from leaves(getattr(thing, name))
        return
    for leaf in pytree.tree_leaves(thing):
        if hasattr(leaf, "__dataclass_fields__"):
            yield from leaves(leaf)
        else:
            yield leaf


def same(one: Any, other: Any) -> bool:
    pairs = list(zip(leaves(one), leaves(other), strict=True))
    return bool(pairs) and all(
        torch.equal(a, b) if isinstance(a, Tensor) else np.array_equal(a, b) for a, b in pairs
    )


def test_it_is_a_task(bench: Bench) -> None:
    task = bench.task
    assert isinstance(task, Task)
    assert task.name
    assert isinstance(task.loss_is_separable, bool)
    assert task.nominal_count > 0
    for samples in (task.train_samples(), task.eval_samples()):
        assert len(samples) >= 2


@pytest.mark.parametrize("split", ["train_samples", "eval_samples"])
def test_a_sample_depends_on_epoch_and_index_alone(bench: Bench, split: str) -> None:
    samples: Samples = getattr(bench.task, split)()
    wanted = samples.sample(3, 1)
    torch.manual_seed(1234)
    random.seed(1234)
    np.random.seed(1234)  # noqa: NPY002 - the global generator must not matter
    samples.sample(0, 0)
    assert same(samples.sample(3, 1), wanted)
    assert same(getattr(bench.task, split)().sample(3, 1), wanted)
    assert same(pickle.loads(pickle.dumps(samples)).sample(3, 1), wanted)
    assert not same(samples.sample(3, 0), wanted)


def test_reading_a_sample_draws_no_global_random_number(bench: Bench) -> None:
    samples = bench.task.train_samples()
    torch.manual_seed(7)
    np.random.seed(7)  # noqa: NPY002 - as above
    random.seed(7)
    samples.sample(0, 0)
    drawn = torch.rand(()).item(), np.random.rand(), random.random()  # noqa: NPY002 - as above
    torch.manual_seed(7)
    np.random.seed(7)  # noqa: NPY002 - as above
    random.seed(7)
    assert drawn == (torch.rand(()).item(), np.random.rand(), random.random())  # noqa: NPY002


def test_what_workers_need_travels_to_them(bench: Bench) -> None:
    batch = bench.task.collate(bench.samples(2))
    travelled = pickle.loads(pickle.dumps(bench.task.collate))
    assert same(travelled(bench.samples(2)), batch)


def test_batches_know_their_size_and_survive_the_copy(bench: Bench) -> None:
    for count in (1, 2):
        batch = bench.task.collate(bench.samples(count))
        assert bench.task.samples_in(batch) == count
        assert same(bench.task.to_device(batch, CPU), batch)


def test_every_tensor_of_a_batch_goes_to_the_device(bench: Bench) -> None:
    batch = bench.task.collate(bench.samples(1))
    moved = bench.task.to_device(batch, torch.device("meta"))
    for name in bench.case.on_host:
        assert getattr(moved, name).device == CPU
    staying = [id(getattr(moved, name)) for name in bench.case.on_host]
    tensors = [leaf for leaf in leaves(moved) if isinstance(leaf, Tensor)]
    assert len(tensors) > len(staying)
    assert all(leaf.device.type == "meta" for leaf in tensors if id(leaf) not in staying)


def test_the_random_state_decides_the_first_weights(bench: Bench) -> None:
    def weights(seed: int) -> list[Tensor]:
        torch.manual_seed(seed)
        return list(bench.task.build_model().state_dict().values())

    assert same(weights(5), weights(5))
    assert not same(weights(5), weights(6))


def test_a_loss_is_a_finite_scalar_with_detached_terms(bench: Bench) -> None:
    batch = bench.task.collate(bench.samples(bench.batch_size))
    bench.model.train()
    loss = bench.task.loss(bench.task.forward(bench.model, batch), batch, 0)
    assert loss.total.shape == ()
    assert loss.total.dtype in (torch.float32, torch.float64)
    assert loss.total.isfinite()
    assert loss.total.requires_grad
    assert loss.terms
    assert all(term.shape == () and not term.requires_grad for term in loss.terms.values())


def test_the_nominal_count_is_about_that_of_a_batch(bench: Bench) -> None:
    batch = bench.task.collate(bench.samples(bench.batch_size))
    count = float(bench.task.loss(bench.output(batch), batch, 0).count)
    assert 0.5 <= count / bench.task.nominal_count <= 2


def test_losses_of_samples_add_up_to_that_of_their_batch(bench: Bench) -> None:
    if not bench.task.loss_is_separable:
        pytest.skip("this loss pairs samples")
    samples = bench.samples(2)
    batch = bench.task.collate(samples)
    whole = bench.task.loss(bench.output(batch), batch, 0)
    singles = [bench.task.collate([sample]) for sample in samples]
    parts = [bench.task.loss(bench.output(single), single, 0) for single in singles]
    torch.testing.assert_close(sum(part.total for part in parts), whole.total)
    assert float(sum(part.count for part in parts)) == pytest.approx(float(whole.count))
    assert float(whole.count) > 0


def test_every_weight_that_learns_gets_a_gradient(bench: Bench) -> None:
    """Ranks wait for each other's gradients; a weight without one would make them wait forever."""
    batch = bench.task.collate(bench.samples(bench.batch_size))
    bench.model.train()
    bench.model.zero_grad(set_to_none=True)
    loss = bench.task.loss(bench.task.forward(bench.model, batch), batch, 0)
    loss.total.backward()
    without = [
        name
        for name, parameter in bench.model.named_parameters()
        if parameter.requires_grad and parameter.grad is None
    ]
    assert without == []
    bench.model.zero_grad(set_to_none=True)


def test_a_teacher_is_the_model_that_its_configuration_describes(bench: Bench) -> None:
    teacher = bench.task.build_teacher(to_yaml(bench.config))
    teacher.load_state_dict(bench.model.state_dict())
    batch = bench.task.collate(bench.samples(1))
    teacher.eval()
    with torch.no_grad():
        assert same(bench.task.forward(teacher, batch), bench.output(batch))


def test_the_distance_to_a_teacher_is_least_at_its_own_output(bench: Bench) -> None:
    samples = bench.samples(2)
    one, other = (bench.output(bench.task.collate([sample])) for sample in samples)
    apart = bench.task.distance(one, other)
    assert apart.shape == ()
    assert apart.isfinite()
    assert bench.task.distance(one, one) < 0.5 * apart


def gathered(bench: Bench, indices: list[int]) -> Metrics:
    metrics = bench.task.metrics()
    samples = bench.task.eval_samples()
    bench.model.eval()
    if isinstance(metrics, SeesModel):
        metrics.see(bench.model)
    for index in indices:
        batch = bench.task.collate([samples.sample(0, index)])
        with torch.no_grad():
            metrics.update(predict(bench.task, bench.model, batch), batch)
    return metrics


def test_metrics_of_shards_add_up_in_any_order(bench: Bench) -> None:
    count = len(bench.task.eval_samples())
    everything = list(range(count))
    whole = gathered(bench, everything)
    state = whole.state()
    assert state.dim() == 1
    shards = [gathered(bench, everything[first::2]).state() for first in (1, 0)]
    torch.testing.assert_close(shards[0] + shards[1], state)
    result = whole.result(shards[0] + shards[1])
    known = set(bench.task.higher_is_better)
    assert set(result) < known if bench.case.lacks_classes else set(result) == known
    assert all(isinstance(value, float) for value in result.values())
    assert result == pytest.approx(whole.result(state))


def test_a_rank_without_samples_adds_nothing(bench: Bench) -> None:
    whole = gathered(bench, list(range(len(bench.task.eval_samples()))))
    idle = bench.task.metrics().state()
    assert idle.shape == whole.state().shape
    torch.testing.assert_close(whole.state() + idle, whole.state())


def test_the_state_of_metrics_does_not_grow_with_the_data(bench: Bench) -> None:
    assert gathered(bench, [0]).state().shape == gathered(bench, [0, 1, 0, 1]).state().shape


def test_parts_are_modules_of_the_model_that_a_pass_calls(bench: Bench) -> None:
    parts = bench.task.parts(bench.model)
    modules = set(bench.model.modules())
    assert parts
    assert all(part in modules for part in parts.values())
    assert len({id(part) for part in parts.values()}) == len(parts)
    called: set[str] = set()
    hooks = [
        part.register_forward_hook(lambda *_, name=name: called.add(name))
        for name, part in parts.items()
    ]
    bench.output(bench.task.collate(bench.samples(1)))
    for hook in hooks:
        hook.remove()
    assert called == set(parts)


def test_regions_are_modules_of_the_model_and_do_not_overlap(bench: Bench) -> None:
    regions = list(bench.task.regions(bench.model))
    modules = set(bench.model.modules())
    assert all(region in modules for region in regions)
    inside = [inner for region in regions for inner in region.modules()]
    assert len({id(inner) for inner in inside}) == len(inside)
