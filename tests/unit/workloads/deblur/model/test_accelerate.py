"""Exchanging the parts of somebody's VRT for ours.

The stand-in has the names and attributes of the authors' code, by which the model is read.
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pitstop
from pitstop.errors import ConfigError
from pitstop.train.model.recompute import recompute_all
from pitstop.workloads.deblur.model.architecture import VRT_SMALL
from pitstop.workloads.deblur.model.blocks import AttentionBlock
from pitstop.workloads.deblur.model.vrt import VRT


class DropPath(nn.Module):
    drop_prob = 0.25


class StandIn(nn.Module):
    """What the authors' model looks like from outside; it cannot run itself."""

    nonblind_denoising = False

    def __init__(self, *, recomputed: bool = False) -> None:
        super().__init__()
        settings: Any = {**VRT_SMALL, "drop_path_rate": 0.25}
        plain = VRT(kernels="reference", **settings)
        arch = plain.architecture
        self.upscale, self.pa_frames = arch.upscale, arch.pa_frames
        self.in_chans, self.out_chans = arch.in_chans, arch.out_chans
        for name, part in plain.named_children():
            self.add_module(name, part)
        for part in self.modules():
            if isinstance(part, AttentionBlock):
                self._dress(part, recomputed=recomputed)
        for group in self.modules():
            if hasattr(group, "blocks"):
                group.window_size = list(group.shape.window)  # type: ignore[union-attr]
        for part in self.modules():
            if hasattr(part, "pa_deform"):
                part.pa_deform.deformable_groups = arch.deformable_groups  # type: ignore[union-attr]

    @staticmethod
    def _dress(block: Any, *, recomputed: bool) -> None:
        block.num_heads = block.attn.num_heads = block.shape.num_heads
        block.attn.dim = block.shape.dim
        block.attn.scale = (block.shape.dim // block.shape.num_heads) ** -0.5
        block.drop_path = DropPath()
        block.use_checkpoint_attn, block.use_checkpoint_ffn = recomputed, False

    def forward(self, x: Tensor) -> Tensor:
        raise AssertionError(f"the authors' own pass over {tuple(x.shape)} was to be replaced")


def test_the_model_runs_by_our_parts_and_keeps_every_tensor_and_name() -> None:
    torch.manual_seed(0)
    theirs = StandIn()
    tensors = {**dict(theirs.named_parameters()), **dict(theirs.named_buffers())}
    names = list(theirs.state_dict())
    plain = VRT(kernels="reference", **{**VRT_SMALL, "drop_path_rate": 0.25})
    plain.load_state_dict(theirs.state_dict())

    assert pitstop.accelerate(theirs.eval()) is theirs

    assert sorted(theirs.state_dict()) == sorted(names)
    for name, tensor in {**dict(theirs.named_parameters()), **dict(theirs.named_buffers())}.items():
        assert tensor is tensors[name], name
    clip = torch.rand(1, 2, 3, 16, 24)
    with torch.no_grad():
        assert torch.equal(theirs(clip), plain.eval()(clip))
    assert not any(part.training for part in theirs.modules())


def test_an_optimizer_made_before_goes_on() -> None:
    theirs = StandIn()
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    pitstop.accelerate(theirs)
    before = [parameter.detach().clone() for parameter in theirs.parameters()]
    theirs(torch.rand(1, 2, 3, 16, 16)).square().mean().backward()
    optimizer.step()
    for old, parameter in zip(before, theirs.parameters(), strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.detach(), old - 0.1 * parameter.grad)


def test_halves_that_were_recomputed_still_are_and_rates_of_dropping_are_kept() -> None:
    theirs = pitstop.accelerate(StandIn(recomputed=True))
    blocks = [part for part in theirs.modules() if isinstance(part, AttentionBlock)]
    assert all(block.recompute_attention is recompute_all for block in blocks)
    assert not any(block.recompute_feed_forward is recompute_all for block in blocks)
    assert theirs.stage8[-1].residual_group.drop_rates[-1] == pytest.approx(0.25)  # type: ignore[index, union-attr]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nonblind_denoising": True}, "told the noise"),
        ({"pa_frames": 0}, "no alignment"),
        ({"out_chans": 2}, "1 of its tensors|2 of its tensors"),
    ],
)
def test_what_ours_does_not_do_is_refused_and_nothing_is_changed(
    change: dict[str, Any], words: str
) -> None:
    theirs = StandIn()
    for name, value in change.items():
        setattr(theirs, name, value)
    parts = list(theirs.modules())
    with pytest.raises(ConfigError, match=words):
        pitstop.accelerate(theirs)
    assert all(mine is other for mine, other in zip(parts, theirs.modules(), strict=True))
    with pytest.raises(AssertionError, match="own pass"):
        theirs(torch.rand(1, 2, 3, 16, 16))


def test_a_model_of_another_kind_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="Linear is no VRT"):
        pitstop.accelerate(nn.Linear(2, 2))
