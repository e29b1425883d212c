import math
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from pitstop.config.workloads.bev import LssModel, MonoModel, SurroundModel
from pitstop.errors import ConfigError, DataError
from pitstop.train.model.memory_format import use_channels_last
from pitstop.workloads.bev.data.batch import BevBatch
from pitstop.workloads.bev.model import lift_splat as bev_model
from pitstop.workloads.bev.model.geometry import Conventions, SplatGrid
from pitstop.workloads.bev.model.lift_splat import MONO, SURROUND, LssNet, LssSettings, settings_of
from pitstop.workloads.bev.model.swin import KeptMask

torch.set_num_threads(1)

SMALL_MONO = replace(
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
SMALL_SURROUND = replace(
    SURROUND,
    image_size=(64, 96),
    backbone="swin_nano",
    drop_path=0.0,
    channels=8,
    depth=(1.0, 21.0, 4.0),
    grid=SplatGrid(
        forward=(-16.0, 16.0, 2.0),
        across=(-16.0, 16.0, 2.0),
        height=(-10.0, 10.0, 20.0),
        frame="ego",
    ),
    heads=(3, 1),
    width=16,
    neck_channels=24,
    encoder_channels=24,
    target=((-15.0, 15.0, 1.5), (-15.0, 15.0, 1.0)),
)
LOOKS_AHEAD = torch.tensor([[0.0, 0.0, 1.0], [-1.0, 0.0, 0.0], [0.0, -1.0, 0.0]])


def batch_for(settings: LssSettings, size: int = 2, cameras: int = 1) -> BevBatch:
    generator = torch.Generator().manual_seed(5)
    height, width = settings.image_size
    intrinsics = torch.tensor([[80.0, 0, width / 2], [0, 80.0, height / 2], [0, 0, 1]])
    pose = torch.eye(4)
    if settings.grid.frame == "ego":
        pose[:3, :3] = LOOKS_AHEAD
    return BevBatch(
        images=torch.randint(
            0, 256, (size, cameras, 3, height, width), generator=generator, dtype=torch.uint8
        ),
        intrinsics=intrinsics.repeat(size, cameras, 1, 1),
        cam_to_ego=pose.repeat(size, cameras, 1, 1),
        image_transform=torch.eye(3).repeat(size, cameras, 1, 1),
        bev_transform=torch.eye(4).repeat(size, 1, 1),
        calibration=torch.full((size,), -1),
        targets=torch.zeros(size, 1, 1, 1, dtype=torch.uint8),
        mask=torch.ones(size, 1, 1, dtype=torch.uint8),
    )


def small(settings: LssSettings) -> LssNet:
    torch.manual_seed(0)
    return LssNet(settings)


@pytest.mark.parametrize(
    ("settings", "cameras", "shape"),
    [(SMALL_MONO, 1, (2, 5, 24, 20)), (SMALL_SURROUND, 3, (2, 4, 20, 30))],
)
def test_bytes_become_logits_on_the_grid_of_the_targets(
    settings: LssSettings, cameras: int, shape: tuple[int, ...]
) -> None:
    logits = small(settings)(batch_for(settings, cameras=cameras))
    assert logits.shape == shape
    assert bool(logits.isfinite().all())


@pytest.mark.parametrize(("settings", "cameras"), [(SMALL_MONO, 1), (SMALL_SURROUND, 2)])
def test_every_weight_that_is_used_learns(settings: LssSettings, cameras: int) -> None:
    net = small(settings)
    logits = net(batch_for(settings, cameras=cameras))
    (logits * torch.randn(logits.shape)).sum().backward()
    idle = [name for name, part in net.named_parameters() if part.grad is None]
    # The backbone's last norm serves classifiers; features have norms of their own.
    assert [name for name in idle if "swin.layernorm" not in name] == []


def test_the_published_one_camera_network_has_its_size_and_work() -> None:
    with torch.device("meta"):
        head = bev_model.TopdownHead(64, 14)
        with FlopCounterMode(display=False) as counter:
            logits = head(torch.empty(1, 64, 98, 100))
    assert logits.shape == (1, 14, 196, 200)
    assert counter.get_total_flops() / 1e9 == pytest.approx(51.5, abs=0.05)
    assert sum(part.numel() for part in head.parameters()) / 1e6 == pytest.approx(1.95, abs=0.005)
    assert MONO.lift.feature_size == (18, 25)
    assert MONO.lift.num_bins == 49
    assert MONO.lift.num_points == 22_050
    assert MONO.grid.shape == (1, 98, 100)


def test_the_published_six_camera_network_lifts_two_million_points() -> None:
    assert SURROUND.lift.feature_size == (32, 88)
    assert SURROUND.lift.num_bins == 118
    assert 6 * SURROUND.lift.num_points == 1_993_728
    assert SURROUND.grid.shape == (1, 256, 256)


@pytest.mark.parametrize(("section", "settings"), [(MonoModel, MONO), (SurroundModel, SURROUND)])
def test_a_configuration_left_alone_is_the_published_network(
    section: type[LssModel], settings: LssSettings
) -> None:
    [classes] = settings.heads
    assert settings_of(section(kind="any"), settings.image_size, classes=classes) == settings


def test_a_configuration_decides_the_grid_and_the_classes() -> None:
    section = MonoModel(kind="any", x_bound=(-5.0, 5.0, 1.0), backbone="swin_nano")
    settings = settings_of(section, (64, 64), classes=3, priors=(0.1, 0.2, 0.3))
    assert settings.grid.across == (-5.0, 5.0, 1.0)
    assert (settings.heads, settings.backbone, settings.image_size) == ((3,), "swin_nano", (64, 64))
    assert settings.priors == (0.1, 0.2, 0.3)


def test_what_a_camera_sees_ahead_moves_the_logits_ahead() -> None:
    settings = replace(SMALL_MONO, conventions=Conventions())
    net = small(settings).eval()
    points = net.locate(batch_for(settings, size=1))
    rows, columns = settings.lift.feature_size
    bins = settings.lift.num_bins
    depth = torch.zeros(1, rows, columns, bins)
    # Third depth, 9 m ahead: row 4 of steps of 2 m from 1 m. The last column looks from pixel
    # 79.5, 3.5 m to the right: column 6 of steps of 2 m from -10 m.
    depth[0, rows // 2, columns - 1, 2] = 1.0
    ground = net.splat(depth, torch.ones(1, rows, columns, 16), points)
    assert [tuple(place) for place in ground[0, 0].nonzero().tolist()] == [(4, 6)]


def test_a_known_calibration_is_worked_out_once_and_gives_the_same() -> None:
    net = small(SMALL_SURROUND)
    batch = batch_for(SMALL_SURROUND, size=3, cameras=2)
    moved = batch.cam_to_ego.clone()
    moved[1, :, 0, 3] += 3.0
    batch = replace(batch, cam_to_ego=moved)
    fresh = net.locate(batch)
    known = replace(batch, calibration=torch.tensor([4, 9, 4]))
    for mine, other in zip(net.locate(known)[:3], fresh[:3], strict=True):
        assert torch.equal(mine, other)
    blind = replace(known, intrinsics=torch.full_like(batch.intrinsics, math.nan))
    assert torch.equal(net.locate(blind).ranks_bev, fresh.ranks_bev)


def test_no_more_calibrations_are_kept_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bev_model, "MAX_KEPT_POINTS", SMALL_SURROUND.lift.num_points * 3 // 2)
    net = small(SMALL_SURROUND)
    batch = replace(batch_for(SMALL_SURROUND), calibration=torch.tensor([1, 2]))
    fresh = net.locate(replace(batch, calibration=torch.tensor([-1, -1])))
    assert torch.equal(net.locate(batch).ranks_bev, fresh.ranks_bev)
    moved = replace(batch, bev_transform=2 * batch.bev_transform)
    assert not torch.equal(net.locate(moved).ranks_bev, fresh.ranks_bev)


def test_logits_start_from_the_class_frequencies() -> None:
    priors = (0.5, 0.1, 0.01, 0.3, 0.9)
    net = small(replace(SMALL_MONO, priors=priors))
    bias = net.head.get_parameter("classifier.bias")
    torch.testing.assert_close(bias.detach().sigmoid(), torch.tensor(priors))
    with pytest.raises(ConfigError, match="2 class frequencies for 5 classes"):
        small(replace(SMALL_MONO, priors=(0.5, 0.5)))
    with pytest.raises(ConfigError, match="between 0 and 1"):
        small(replace(SMALL_MONO, priors=(0.5, 0.5, 0.5, 0.5, 0.0)))


def test_frequencies_of_several_heads_reach_each_its_own() -> None:
    net = small(replace(SMALL_SURROUND, priors=(0.1, 0.2, 0.3, 0.4)))
    biases = [net.head.get_parameter(f"classifiers.{i}.2.bias").detach() for i in (0, 1)]
    torch.testing.assert_close(torch.cat(biases).sigmoid(), torch.tensor([0.1, 0.2, 0.3, 0.4]))


def test_the_kept_masks_of_shifted_windows_are_those_transformers_makes() -> None:
    settings = SMALL_MONO
    net = small(settings).eval()
    images = torch.randn(1, 3, *settings.image_size)
    kept = net.backbone(images)
    for block in net.backbone.blocks():
        vars(block).pop("get_attn_mask", None)
    for mine, plain in zip(kept, net.backbone(images), strict=True):
        assert torch.equal(mine, plain)


def test_shifted_blocks_do_have_a_kept_mask() -> None:
    blocks = small(SMALL_MONO).backbone.blocks()
    assert len(blocks) == 8
    # What a block calls: transformers' own method belongs to the block itself.
    called: list[Any] = [block.get_attn_mask for block in blocks]
    kept = [isinstance(method.__self__, KeptMask) for method in called]
    assert kept == [False, True] * 4


def test_a_copy_of_a_network_has_masks_of_its_own() -> None:
    net = small(SMALL_MONO)
    first, again = (one.backbone.blocks()[1] for one in (net, deepcopy(net)))
    method: Any = again.get_attn_mask
    assert method.__self__ is again.get_submodule("kept_mask")
    assert method.__self__ is not first.get_submodule("kept_mask")


def test_weights_of_a_classifier_are_found_in_its_folder(tmp_path: Path) -> None:
    net = small(SMALL_MONO)
    inner = net.backbone.backbone.get_submodule("swin")
    inner.save_pretrained(tmp_path)  # pyright: ignore[reportCallIssue]
    torch.manual_seed(99)
    other = LssNet(replace(SMALL_MONO, weights=tmp_path))
    images = torch.randn(1, 3, *SMALL_MONO.image_size)
    for mine, loaded in zip(net.backbone(images), other.backbone(images), strict=True):
        torch.testing.assert_close(mine, loaded)


def test_weights_that_are_not_there_or_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no config"):
        LssNet(replace(SMALL_MONO, weights=tmp_path))
    small(SMALL_MONO).backbone.backbone.get_submodule("swin").save_pretrained(tmp_path)  # pyright: ignore[reportCallIssue]
    with pytest.raises(DataError, match=r"do not fit|lack"):
        LssNet(replace(SMALL_MONO, backbone="swin_t", weights=tmp_path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"backbone": "resnet"}, "choose one of swin_nano, swin_t"),
        ({"out_stages": (4,)}, "has the stages 0 to 3"),
        ({"out_stages": (2, 3)}, "six-camera network alone"),
        ({"image_size": (16, 96)}, "smaller than one feature"),
        ({"width": 24}, "groups"),
    ],
)
def test_settings_that_do_not_fit_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LssNet(replace(SMALL_MONO, **change))


def test_channels_last_changes_no_result() -> None:
    net = small(SMALL_SURROUND).eval()
    batch = batch_for(SMALL_SURROUND)
    plain = net(batch)
    assert use_channels_last(net).num_weights > 10
    torch.testing.assert_close(net(batch), plain, rtol=1e-4, atol=1e-4)


def test_half_precision_is_left_to_autocast_and_geometry_is_not() -> None:
    net = small(SMALL_MONO).eval()
    batch = batch_for(SMALL_MONO)
    with torch.no_grad():
        plain = net(batch)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half = net(batch)
    assert half.dtype == torch.bfloat16
    assert float((half.float() - plain).abs().max()) < 0.2 * float(plain.abs().max())


def steps(net: LssNet, batch: BevBatch) -> tuple[Tensor, Tensor]:
    logits = net(batch)
    loss = logits.square().mean()
    (grad,) = torch.autograd.grad(loss, net.depth_net.project.weight)
    return logits.detach(), grad


# The compiler looks at the gradients of whatever it is handed, and hides the warning from users.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.slow
@pytest.mark.parametrize(("settings", "cameras"), [(SMALL_MONO, 1), (SMALL_SURROUND, 2)])
def test_both_kinds_of_block_and_all_parts_behind_compile_to_one_graph_each(
    settings: LssSettings, cameras: int
) -> None:
    net = small(settings).eval()
    batch = batch_for(settings, cameras=cameras)
    plain = steps(net, batch)
    torch.compiler.reset()
    blocks = len(net.backbone.blocks())
    # A plain and a shifted block: the others are the same code at other sizes.
    chosen = [*net.regions()[:2], *net.regions()[blocks:]]
    for region in chosen:
        # Left to itself the compiler makes the sizes of later stages unknowns, and then takes
        # minutes to reason about windows of unknown pictures.
        region.compile(fullgraph=True, backend="aot_eager", dynamic=False)
    # Layers of all sizes are one function; the engine raises its limit, too.
    with torch._dynamo.config.patch(recompile_limit=len(chosen)):  # pyright: ignore[reportPrivateUsage]
        mine_too = steps(net, batch)
    for mine, true in zip(mine_too, plain, strict=True):
        torch.testing.assert_close(mine, true, rtol=1e-4, atol=1e-5)
