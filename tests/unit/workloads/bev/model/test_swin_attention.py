from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pitstop.errors import ConfigError
from pitstop.kernels import Kernels
from pitstop.workloads.bev.data.batch import BevBatch
from pitstop.workloads.bev.model import swin
from pitstop.workloads.bev.model.geometry import SplatGrid
from pitstop.workloads.bev.model.lift_splat import MONO, LssNet
from pitstop.workloads.bev.model.swin import SwinFeatures, SwinSize
from pitstop.workloads.bev.model.swin_attention import JoinedAttention

torch.set_num_threads(1)

SMALL_T = SwinSize(embed_dim=32, depths=(2, 2), num_heads=(1, 2), window=7)
"""Heads of 32 channels and windows of 7, as in swin_t."""
IMAGE_SIZE = (72, 100)
"""In the first stage 18x25 tokens: windows of neither size fit, so some are filled up."""


@pytest.fixture(autouse=True)
def sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swin, "SIZES", {**swin.SIZES, "small_t": SMALL_T})


def features_of(name: str, kernels: Kernels, **more: Any) -> SwinFeatures:
    torch.manual_seed(0)
    features = SwinFeatures(name, out_stages=(0, 1), image_size=IMAGE_SIZE, kernels=kernels, **more)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        # Fresh tables are zero and fresh projections small: attention would be a plain mean.
        for path, weight in features.named_parameters():
            if "attention" in path:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.4)
    return features


def pictures(batch: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(batch, 3, *IMAGE_SIZE, generator=generator)


def sum_of(maps: list[Tensor]) -> Tensor:
    """A number that looks at every pixel of all maps."""
    generator = torch.Generator().manual_seed(3)
    sums = [(part * torch.randn(part.shape, generator=generator)).sum() for part in maps]
    return torch.stack(sums).sum()


def maps_and_gradients(
    features: nn.Module, given: Tensor
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Maps of all stages, and the gradient of each weight."""
    maps: list[Tensor] = features(given)
    named = dict(features.named_parameters())
    grads = torch.autograd.grad(sum_of(maps), list(named.values()))
    by_name = dict(zip(named, grads, strict=True))
    return {f"stage {stage}": part.detach() for stage, part in enumerate(maps)}, by_name


def assert_same(got: Mapping[str, Tensor], want: Mapping[str, Tensor]) -> None:
    assert list(got) == list(want)
    for name, mine in got.items():
        # What all keys have in common has no weight: its gradient is rounding alone.
        size = want[name.replace("k_proj.bias", "q_proj.bias")].abs().max()
        error = (mine - want[name]).abs().max() / size
        assert float(error) < 1e-5, f"{name} is off by {float(error)} of its size"


@pytest.mark.parametrize("name", ["swin_nano", "small_t"])
def test_joined_attention_gives_the_maps_and_gradients_of_the_plain_one(name: str) -> None:
    plain, joined = (features_of(name, kind) for kind in ("reference", "auto"))
    blocks = joined.blocks()
    assert all(isinstance(block.get_submodule("attention"), JoinedAttention) for block in blocks)
    shifted = [int(getattr(block, "shift_size")) > 0 for block in blocks]  # noqa: B009 - transformers' own name
    assert shifted == [False, True] * 2
    maps, grads = maps_and_gradients(plain, pictures())
    got_maps, got_grads = maps_and_gradients(joined, pictures())
    assert_same(got_maps, maps)
    assert_same(got_grads, grads)
    learned = [path for path in got_grads if "attention" in path]
    # Three projections and their biases, the output's, and a table, in each of four blocks.
    assert len(learned) == 4 * 9


def test_one_block_alone_agrees_with_and_without_a_mask() -> None:
    attention: Any = features_of("small_t", "reference").blocks()[1].get_submodule("attention")
    tokens = torch.randn(6, 49, 32)
    mask = torch.where(torch.rand(3, 49, 49) > 0.7, -100.0, 0.0)
    for given in (None, mask):
        want, _ = attention(tokens, given)
        got, weights = JoinedAttention(attention)(tokens, given)
        assert weights is None
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_projections_without_a_bias_are_joined_as_well() -> None:
    attention: Any = features_of("small_t", "reference").blocks()[0].get_submodule("attention")
    for layer in (attention.q_proj, attention.k_proj, attention.v_proj):
        layer.bias = None
    tokens = torch.randn(2, 49, 32)
    want, _ = attention(tokens)
    torch.testing.assert_close(JoinedAttention(attention)(tokens)[0], want, rtol=1e-5, atol=1e-5)


def test_names_and_order_of_weights_do_not_change() -> None:
    plain, joined = (features_of("swin_nano", kind) for kind in ("reference", "auto"))
    shapes = {name: part.shape for name, part in plain.state_dict().items()}
    assert {name: part.shape for name, part in joined.state_dict().items()} == shapes
    assert [n for n, _ in joined.named_parameters()] == [n for n, _ in plain.named_parameters()]


@pytest.mark.parametrize(("saved", "loaded"), [("reference", "auto"), ("auto", "reference")])
def test_a_checkpoint_of_the_one_loads_into_the_other(
    tmp_path: Path, saved: Kernels, loaded: Kernels
) -> None:
    source = features_of("swin_nano", saved)
    with torch.no_grad():
        for weight in source.parameters():
            weight.add_(0.01)
    torch.save(source.state_dict(), tmp_path / "weights.pt")
    target = features_of("swin_nano", loaded)
    target.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True), strict=True)
    with torch.no_grad():
        want, got = source(pictures()), target(pictures())
    for mine, other in zip(got, want, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)


def test_weights_of_a_folder_are_taken_over(tmp_path: Path) -> None:
    inner: Any = features_of("swin_nano", "reference").backbone.get_submodule("swin")
    inner.layernorm = nn.LayerNorm(48)
    inner.save_pretrained(tmp_path)
    features = SwinFeatures(
        "swin_nano",
        out_stages=(0, 1),
        image_size=IMAGE_SIZE,
        weights=tmp_path,
    )
    for path, weight in features.backbone.named_parameters():
        if "attention" in path:
            assert torch.equal(weight, inner.get_parameter(path.removeprefix("swin.")))


@pytest.mark.slow
def test_it_compiles_as_one_graph_with_its_gradients() -> None:
    joined = features_of("small_t", "auto")
    want_maps, want = maps_and_gradients(joined, pictures())
    compiled: Any = torch.compile(joined, fullgraph=True, backend="aot_eager")
    maps: list[Tensor] = compiled(pictures())
    sum_of(maps).backward()
    assert_same({f"stage {stage}": part.detach() for stage, part in enumerate(maps)}, want_maps)
    got = {name: part.grad for name, part in joined.named_parameters() if part.grad is not None}
    assert_same(got, want)


def test_in_half_precision_it_answers_in_the_types_of_the_plain_one() -> None:
    plain, joined = (features_of("small_t", kind) for kind in ("reference", "auto"))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        want, got = plain(pictures()), joined(pictures())
    for mine, other in zip(got, want, strict=True):
        assert mine.dtype == other.dtype
        torch.testing.assert_close(mine, other, rtol=0.1, atol=0.1)


def test_a_network_is_joined_unless_its_kernels_are_the_reference() -> None:
    settings = replace(
        MONO,
        image_size=(72, 96),
        backbone="swin_nano",
        channels=16,
        depth=(1.0, 25.0, 4.0),
        grid=SplatGrid(
            forward=(1.0, 25.0, 2.0),
            across=(-10.0, 10.0, 2.0),
            height=(-10.0, 10.0, 20.0),
            frame="camera",
        ),
        heads=(5,),
        width=32,
    )
    batch = BevBatch(
        images=torch.randint(0, 256, (2, 1, 3, 72, 96), dtype=torch.uint8),
        intrinsics=torch.tensor([[80.0, 0, 48], [0, 80.0, 36], [0, 0, 1]]).repeat(2, 1, 1, 1),
        cam_to_ego=torch.eye(4).repeat(2, 1, 1, 1),
        image_transform=torch.eye(3).repeat(2, 1, 1, 1),
        bev_transform=torch.eye(4).repeat(2, 1, 1),
        calibration=torch.full((2,), -1),
        targets=torch.zeros(2, 1, 1, 1, dtype=torch.uint8),
        mask=torch.ones(2, 1, 1, dtype=torch.uint8),
    )
    torch.manual_seed(0)
    nets = [LssNet(settings, kernels="reference").eval()]
    torch.manual_seed(0)
    nets.append(LssNet(settings).eval())
    kinds = [any(isinstance(part, JoinedAttention) for part in net.modules()) for net in nets]
    assert kinds == [False, True]
    with torch.no_grad():
        torch.testing.assert_close(nets[1](batch), nets[0](batch), rtol=1e-4, atol=1e-5)


def test_the_version_of_the_operation_is_the_one_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pitstop.kernels.has_triton", lambda: False)
    with pytest.raises(ConfigError, match="needs Triton"):
        features_of("swin_nano", "fused")


def test_dropped_weights_of_attention_are_not_passed_over_in_silence() -> None:
    attention: Any = features_of("swin_nano", "reference").blocks()[0].get_submodule("attention")
    attention.attention_dropout = 0.1
    with pytest.raises(AssertionError, match="dropped"):
        JoinedAttention(attention)
