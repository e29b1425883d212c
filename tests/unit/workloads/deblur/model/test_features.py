"""Feature networks by torchvision's names, the perceptual loss and LPIPS by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pitstop.config.workloads.deblur import (
    FEATURE_LAYERS,
    CharbonnierTerm,
    DeblurLoss,
    LpipsSection,
    PerceptualTerm,
)
from pitstop.errors import ConfigError
from pitstop.workloads.deblur.losses import PerceptualDistance, build_terms, judge, loss_parts
from pitstop.workloads.deblur.model.features import Colours, Features, Network, load_features
from pitstop.workloads.deblur.model.lpips import Lpips, build_lpips

# Places of the convolutions and numbers of channels, written down from the published networks.
CONVS: dict[str, dict[int, tuple[int, ...]]] = {
    "vgg16": {0: (64, 3), 2: (64, 64), 5: (128, 64), 7: (128, 128), 10: (256, 128)}
    | {12: (256, 256), 14: (256, 256), 17: (512, 256), 19: (512, 512), 21: (512, 512)}
    | {24: (512, 512), 26: (512, 512), 28: (512, 512)},
    "vgg19": {0: (64, 3), 2: (64, 64), 5: (128, 64), 7: (128, 128), 10: (256, 128)}
    | {12: (256, 256), 14: (256, 256), 16: (256, 256), 19: (512, 256), 21: (512, 512)}
    | {23: (512, 512), 25: (512, 512), 28: (512, 512), 30: (512, 512), 32: (512, 512)}
    | {34: (512, 512)},
    "alexnet": {0: (64, 3), 3: (192, 64), 6: (384, 192), 8: (256, 384), 10: (256, 256)},
}
FIRES = {3: (64, 16, 64), 4: (128, 16, 64), 6: (128, 32, 128), 7: (256, 32, 128)} | {
    9: (256, 48, 192),
    10: (384, 48, 192),
    11: (384, 64, 256),
    12: (512, 64, 256),
}


@pytest.mark.parametrize("network", ["vgg16", "vgg19", "alexnet"])
def test_convolutions_stand_where_torchvision_has_them(network: Any) -> None:
    with torch.device("meta"):
        state = Features(network, [FEATURE_LAYERS[network][-1]]).state_dict()
    found = {
        int(name.split(".")[1]): tuple(value.shape[:2])
        for name, value in state.items()
        if name.endswith("weight")
    }
    assert found == CONVS[network]
    assert len(state) == 2 * len(found)


def test_squeezenet_has_its_fires_where_torchvision_has_them() -> None:
    with torch.device("meta"):
        state = Features("squeezenet", ["fire9"]).state_dict()
    assert tuple(state["features.0.weight"].shape) == (64, 3, 3, 3)
    for place, (wide, narrow, expanded) in FIRES.items():
        shapes = [
            tuple(state[f"features.{place}.{part}.weight"].shape)
            for part in ("squeeze", "expand1x1", "expand3x3")
        ]
        assert shapes == [
            (narrow, wide, 1, 1),
            (expanded, narrow, 1, 1),
            (expanded, narrow, 3, 3),
        ]
    assert len(state) == 2 + 6 * len(FIRES)


def test_a_layer_is_named_by_its_depth_and_nothing_deeper_is_built() -> None:
    features = Features("vgg16", ["relu1_2", "relu3_3"])
    out = features(torch.rand(1, 3, 16, 16))
    shapes = {name: tuple(layer.shape[1:]) for name, layer in out.items()}
    assert shapes == {"relu1_2": (64, 16, 16), "relu3_3": (256, 4, 4)}
    assert all((layer >= 0).all() for layer in out.values())
    assert len(features.features) == 16
    squeezed = Features("squeezenet", ["relu1", "fire3"])(torch.rand(1, 3, 32, 32))
    assert {name: layer.shape[1] for name, layer in squeezed.items()} == {"relu1": 64, "fire3": 128}


def test_what_is_not_trained_stays_frozen() -> None:
    features = Features("alexnet", ["relu1"])
    features.train()
    assert not features.training
    assert not any(parameter.requires_grad for parameter in features.parameters())


class TinyFeatures(Features):
    """Two layers that can be worked out by hand: a 1x1 convolution, a rectifier, and another."""

    def __init__(self) -> None:
        super().__init__("alexnet", ["relu1", "relu2"])
        torch.manual_seed(0)
        self.features = nn.Sequential(nn.Conv2d(3, 2, 1), nn.ReLU(), nn.Conv2d(2, 4, 1), nn.ReLU())
        self.taps = {1: "relu1", 3: "relu2"}
        self.requires_grad_(requires_grad=False)


def by_hand(features: Features, image: np.ndarray) -> list[np.ndarray]:
    out = []
    for place in (0, 2):
        layer = features.features[place]
        assert isinstance(layer, nn.Conv2d)
        assert layer.bias is not None
        weight, bias = layer.weight[:, :, 0, 0].numpy(), layer.bias.numpy()
        image = np.maximum(np.einsum("oc,chw->ohw", weight, image) + bias[:, None, None], 0)
        out.append(image)
    return out


def clips(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    one, other = torch.rand(2, 2, 3, 3, 4, 5, generator=generator)
    return one, other


@pytest.mark.parametrize("normalisation", ["imagenet", "caffe"])
def test_the_perceptual_distance_is_the_mean_difference_of_features(normalisation: Any) -> None:
    features = TinyFeatures()
    distance = PerceptualDistance(features, normalisation=normalisation)
    restored, sharp = clips(1)
    mean, deviation = {
        "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        "caffe": ((0.48235, 0.45882, 0.40784), (1 / 255,) * 3),
    }[normalisation]

    def layers(image: Tensor) -> list[np.ndarray]:
        colours = (image.numpy() - np.reshape(mean, (3, 1, 1))) / np.reshape(deviation, (3, 1, 1))
        return by_hand(features, colours)

    for sample, found in enumerate(distance(restored, sharp).tolist()):
        wanted = 0.0
        for layer in range(2):
            apart = [
                np.abs(layers(one)[layer] - layers(other)[layer])
                for one, other in zip(restored[sample], sharp[sample], strict=True)
            ]
            wanted += float(np.mean(apart))
        assert found == pytest.approx(wanted, rel=1e-5)


def test_gradients_reach_the_restored_frames_alone() -> None:
    distance = PerceptualDistance(TinyFeatures(), normalisation="imagenet")
    restored, sharp = clips(2)
    restored.requires_grad_()
    sharp.requires_grad_()
    distance(restored, sharp).sum().backward()
    assert restored.grad is not None
    assert restored.grad.any()
    assert sharp.grad is None
    assert all(parameter.grad is None for parameter in distance.parameters())


def saved(path: Path, network: Network, layer: str, **more: Tensor) -> Path:
    torch.manual_seed(0)
    torch.save({**Features(network, [layer]).state_dict(), **more}, path)
    return path


def test_a_file_of_a_whole_classifier_is_loaded_as_deep_as_is_needed(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pth", "alexnet", "relu5", **{"classifier.1.weight": torch.ones(2)})
    features = Features("alexnet", ["relu2"])
    load_features(features, path, normalisation="imagenet")
    state = torch.load(path, weights_only=True)
    assert all(torch.equal(value, state[name]) for name, value in features.state_dict().items())


def test_weights_for_other_colours_are_noticed(tmp_path: Path) -> None:
    """Taken with the usual deviation they would see a picture 57 times too pale."""
    nothing = torch.full((3,), torch.nan)
    path = saved(tmp_path / "a.pth", "alexnet", "relu1", **{"classifier.1.weight": nothing})
    features = Features("alexnet", ["relu1"])
    with pytest.raises(ConfigError, match=r"set loss\.perceptual\.normalisation to caffe"):
        load_features(features, path, normalisation="imagenet")
    load_features(features, path, normalisation="caffe")
    usual, theirs = Colours.of("imagenet"), Colours.of("caffe")
    ratio = theirs.deviation[0, 0] / usual.deviation[0, 0]
    assert 1 / ratio.item() == pytest.approx(58, abs=1)


def test_absent_and_strange_weights_are_said_clearly(tmp_path: Path) -> None:
    def build(**settings: Any) -> None:
        build_terms(DeblurLoss(perceptual=PerceptualTerm(weight=0.1, **settings)))

    with pytest.raises(ConfigError, match=r"weights is not set: name a file of vgg16's weights"):
        build()
    with pytest.raises(ConfigError, match=r"names .*none\.pth, which is not there"):
        build(weights=tmp_path / "none.pth")
    path = saved(tmp_path / "a.pth", "alexnet", "relu1")
    with pytest.raises(ConfigError, match=r"no file of vgg16's weights: it has"):
        build(weights=path)
    with pytest.raises(ConfigError, match="alexnet has no layer relu3_3"):
        build(weights=path, network="alexnet")


def test_the_perceptual_term_joins_the_loss_at_its_own_steps(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pth", "alexnet", "relu2")
    section = DeblurLoss(
        charbonnier=CharbonnierTerm(weight=2.0),
        perceptual=PerceptualTerm(
            weight=0.5, every_steps=3, network="alexnet", layers=("relu1", "relu2"), weights=path
        ),
    )
    terms = build_terms(section)
    restored, sharp = torch.rand(2, 1, 1, 3, 40, 40, generator=torch.Generator().manual_seed(0))
    due, not_due = (judge(terms, restored, sharp, step=step) for step in (3, 4))
    assert set(due.terms) == {"charbonnier", "perceptual"}
    assert set(not_due.terms) == {"charbonnier"}
    extra = (due.total - not_due.total).item()
    assert extra == pytest.approx(0.5 * due.terms["perceptual"].item(), rel=1e-4)
    assert set(loss_parts(terms)) == {"pixel_loss", "perceptual_loss"}
    [fewer] = [
        term.distance(restored, sharp)
        for term in build_terms(
            section.model_copy(
                update={"perceptual": section.perceptual.model_copy(update={"layers": ("relu1",)})}
            )
        )
        if term.name == "perceptual"
    ]
    assert fewer.item() < due.terms["perceptual"].item()


def test_a_perceptual_loss_alone_is_a_loss(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pth", "squeezenet", "fire2")
    perceptual = PerceptualTerm(weight=1.0, network="squeezenet", layers=("fire2",), weights=path)
    section = DeblurLoss(charbonnier=CharbonnierTerm(weight=0.0), perceptual=perceptual)
    [term] = build_terms(section)
    assert term.name == "perceptual"
    rare = section.model_copy(
        update={"perceptual": perceptual.model_copy(update={"every_steps": 2})}
    )
    with pytest.raises(ConfigError, match=r"loss\.perceptual\.every_steps is 2"):
        build_terms(rare)


def test_under_bf16_the_network_runs_in_it(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pth", "alexnet", "relu1")
    perceptual = PerceptualTerm(weight=1.0, network="alexnet", layers=("relu1",), weights=path)
    for precision, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float32)):
        terms = build_terms(DeblurLoss(perceptual=perceptual), precision=precision)
        distance = terms[1].distance
        assert isinstance(distance, PerceptualDistance)
        seen: list[torch.dtype] = []
        distance.features.features[0].register_forward_hook(
            lambda *args, seen=seen: seen.append(args[2].dtype)
        )
        found = distance(*torch.rand(2, 1, 1, 3, 16, 16))
        assert (seen[0], found.dtype) == (dtype, torch.float32)


def test_lpips_is_the_weighted_difference_of_directions() -> None:
    features = TinyFeatures()
    weights = [torch.rand(2), torch.rand(4)]
    image, reference = torch.rand(2, 1, 3, 4, 5)
    found = Lpips(features, weights)(image, reference).item()
    wanted = 0.0
    shift, scale = np.array((-0.030, -0.088, -0.188)), np.array((0.458, 0.448, 0.450))
    layers = [
        by_hand(
            features, (2 * picture[0].numpy() - 1 - shift[:, None, None]) / scale[:, None, None]
        )
        for picture in (image, reference)
    ]
    for *both, weight in zip(*layers, weights, strict=True):
        one, other = (layer / (np.sqrt((layer**2).sum(axis=0)) + 1e-10) for layer in both)
        wanted += ((one - other) ** 2 * weight.numpy()[:, None, None]).sum(axis=0).mean()
    assert found == pytest.approx(wanted, rel=1e-4)
    assert Lpips(features, weights)(image, image).item() == 0


def test_lpips_is_built_of_its_files_or_not_at_all(tmp_path: Path) -> None:
    assert build_lpips(LpipsSection()) is None
    backbone = saved(tmp_path / "a.pth", "alexnet", "relu5")
    widths = (64, 192, 384, 256, 256)
    weights = {f"lin{i}.model.1.weight": torch.rand(1, n, 1, 1) for i, n in enumerate(widths)}
    torch.save(weights, tmp_path / "lin.pth")
    section = LpipsSection(backbone=backbone, weights=tmp_path / "lin.pth")
    metric = build_lpips(section)
    assert metric is not None
    assert metric(*torch.rand(2, 1, 3, 64, 64)).item() > 0
    del weights["lin4.model.1.weight"]
    torch.save(weights, tmp_path / "lin.pth")
    with pytest.raises(ConfigError, match=r"no lin4\.model\.1\.weight of 256 numbers"):
        build_lpips(section)
