from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pitstop.config.sections import CompileSection
from pitstop.config.workloads.reid import CLIP_BACKBONES, PATCHES, ReidLoss, TripletTerm
from pitstop.train.model.compiling import CompileMonitor, apply_compile
from pitstop.train.model.part_spans import part_spans
from pitstop.train.model.recompute import apply_recompute
from pitstop.workloads.reid.data.modalities import IMAGE_MODALITIES, MODALITIES
from pitstop.workloads.reid.losses import build_terms, judge
from pitstop.workloads.reid.model.fusion import Fusion, Neck
from pitstop.workloads.reid.model.towers import BACKBONES, Block
from pitstop_probe import Clock, Step
from tests.unit.workloads.reid.small_models import random_batch, small_model

torch.set_num_threads(1)

# The compiler looks whether an intermediate has a gradient, and silences torch's warning about it
# in a way that warnings turned into errors undo.
_GRAD = "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"


class _Nobody:
    """Hears of finished steps and forgets them."""

    def step(self, step: Step) -> None: ...

    def event(self, name: str, *, step: int, start_us: int, wall_us: int) -> None: ...


class _NothingRead(TorchDispatchMode):
    """Fails where a value of the device is read by the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert "_local_scalar_dense" not in str(func), func
        assert "nonzero" not in str(func), func
        assert "masked_select" not in str(func), func
        return func(*args, **(kwargs or {}))


def test_a_step_reads_nothing_from_the_device() -> None:
    model = small_model()
    batch = random_batch(6)
    terms = build_terms(ReidLoss(triplet=TripletTerm(weight=1.0)))
    with _NothingRead():
        output = model(batch.images, batch.present, batch.tokens)
        judge(terms, output, batch, step=0, epoch=0).total.backward()


@pytest.mark.slow
@pytest.mark.filterwarnings(_GRAD)
def test_the_whole_model_is_one_graph() -> None:
    model = small_model()
    batch = random_batch(4)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    wanted = model.eval()(batch.images, batch.present, batch.tokens)
    found = compiled(batch.images, batch.present, batch.tokens)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings(_GRAD)
def test_regions_are_four_graphs_however_many_blocks_there_are() -> None:
    model = small_model()
    torch.compiler.reset()
    regions = model.named_regions()
    apply_compile(model, CompileSection(scope="regions"), regions, backend="aot_eager")
    batch = random_batch(4)
    # Timed as in a run: a hook on a compiled module would break its graph.
    with part_spans(model.named_parts(), Clock(_Nobody())), CompileMonitor() as watch:
        for _ in range(2):
            output = model(batch.images, batch.present, batch.tokens)
            output.logits.sum().backward()
        proof = watch.proof()
        assert not proof.breaks
        assert proof.graphs == 4
        assert proof.recompiles == 0
        # An evaluation comes with other sizes, and compiles nothing.
        model.eval()
        model.encode(batch.images[:3], batch.present[:3], batch.tokens[:3])
        assert watch.proof().graphs == 4


def test_what_stands_at_a_missing_modality_does_not_matter() -> None:
    model = small_model().eval()
    batch = random_batch(6)
    noise = torch.randint(0, 256, batch.images.shape, dtype=torch.uint8)
    shown = batch.present[:, :-1, None, None, None]
    changed = torch.where(shown, batch.images, noise)
    one = model(batch.images, batch.present, batch.tokens)
    other = model(changed, batch.present, batch.tokens)
    torch.testing.assert_close(one.together, other.together)
    there = batch.present.T
    torch.testing.assert_close(one.alone[there], other.alone[there])
    assert not torch.allclose(one.alone[~there], other.alone[~there])


def test_encoding_one_by_one_gives_the_features_of_training() -> None:
    model = small_model().eval()
    batch = random_batch(6)
    output = model(batch.images, batch.present, batch.tokens)
    tokens = model.encode(batch.images, batch.present, batch.tokens)
    torch.testing.assert_close(
        model.fusion.join(tokens, batch.present), output.together, rtol=1e-4, atol=1e-5
    )
    assert tokens[~batch.present].abs().sum() == 0
    for place in range(len(MODALITIES)):
        only = torch.zeros_like(batch.present)
        only[:, place] = True
        rows = batch.present[:, place]
        torch.testing.assert_close(
            model.fusion.join(tokens, only)[rows],
            output.alone[place][rows],
            rtol=1e-4,
            atol=1e-5,
        )


def test_a_modality_is_heard_exactly_where_it_is_there() -> None:
    torch.manual_seed(0)
    fusion = Fusion(8, heads=2, modalities=5)
    tokens = torch.randn(3, 5, 8, requires_grad=True)
    present = torch.tensor([[1, 0, 1, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 1]]).bool()
    fusion.join(tokens, present).sum(0).square().sum().backward()
    assert tokens.grad is not None
    assert torch.equal(tokens.grad.abs().sum(-1) > 0, present)


def test_a_record_with_nothing_is_made_of_null_tokens_and_is_finite() -> None:
    torch.manual_seed(0)
    fusion = Fusion(8, heads=2, modalities=5)
    nothing = torch.zeros(2, 5, dtype=torch.bool)
    found = fusion.join(torch.randn(2, 5, 8), nothing)
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found[0], found[1])


def test_the_neck_has_features_of_length_eight_and_no_bias() -> None:
    neck = Neck(8, people=5, dropout=0.0)
    seen: list[Tensor] = []
    neck.classifier.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    neck(torch.randn(6, 8))
    torch.testing.assert_close(seen[0].norm(dim=1), torch.full((6,), 8.0))
    assert [name for name, p in neck.named_parameters() if p.requires_grad] == [
        "norm.weight",
        "classifier.weight",
    ]
    assert neck.classifier.weight.std() < 0.002


@pytest.mark.parametrize("policy", ["full", "selective", "attention", "ffn"])
def test_recomputing_changes_no_gradient(policy: str) -> None:
    plain, recomputed = small_model(), small_model()
    units = [m for m in recomputed.modules() if isinstance(m, Block)]
    facts = apply_recompute(recomputed, policy, units=units)
    assert facts.places
    batch = random_batch(4)
    for model in (plain, recomputed):
        model.neck.dropout.p = 0.0
        model(batch.images, batch.present, batch.tokens).logits.square().sum().backward()
    for one, other in zip(plain.parameters(), recomputed.parameters(), strict=True):
        if one.grad is not None:
            torch.testing.assert_close(one.grad, other.grad)


def test_half_precision_stays_near_full() -> None:
    model = small_model().eval()
    batch = random_batch(6)
    wanted = model(batch.images, batch.present, batch.tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = model(batch.images, batch.present, batch.tokens)
    assert found.logits.dtype == torch.float32
    torch.testing.assert_close(found.together.float(), wanted.together, rtol=0.1, atol=0.1)


def test_the_table_of_patches_is_that_of_the_towers() -> None:
    assert {name: shape.patch for name, shape in BACKBONES.items()} == PATCHES
    assert set(CLIP_BACKBONES) <= set(BACKBONES)


def test_the_backbone_is_all_that_clip_brings_along_in_its_blocks() -> None:
    model = small_model()
    frozen = {id(p) for p in model.backbone_parameters()}
    kept = {name for name, p in model.named_parameters() if id(p) not in frozen}
    assert {name.split(".")[0] for name in kept} == {"patches", "trunk", "text", "fusion", "neck"}
    of_towers = {name for name in kept if name.startswith(("trunk", "text"))}
    assert all("adapter" in name or "projection" in name for name in of_towers)
    assert len(IMAGE_MODALITIES) == model.trunk.blocks[0].qkv.adapter_up.shape[0]  # type: ignore[union-attr]
