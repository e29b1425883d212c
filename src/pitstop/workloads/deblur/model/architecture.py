"""The settings of VRT: what they mean, which of them fit together, and named sets of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypedDict

from pitstop.errors import ConfigError

NUM_ALIGNED_STAGES: Final = 7
STAGE_SCALES: Final = (1, 2, 4, 8, 4, 2, 1)
MAX_RESIDUE: Final = 10.0
RGB: Final = 3
ENLARGED_CHANNELS: Final = 64
"""Channels while pictures are enlarged, whatever the width of the rest."""


class VRTSettings(TypedDict, total=False):
    """What `VRT` takes, by the names of the published configurations; see `Architecture`."""

    upscale: int
    in_chans: int
    out_chans: int
    window_size: Sequence[int]
    depths: Sequence[int]
    indep_reconsts: Sequence[int]
    embed_dims: Sequence[int]
    num_heads: Sequence[int]
    mul_attn_ratio: float
    mlp_ratio: float
    qkv_bias: bool
    drop_path_rate: float
    pa_frames: int
    deformable_groups: int
    flow_channels: Sequence[int]
    noise_map: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Checked settings of one VRT.

    Raises:
        ConfigError: When settings do not fit together; names all of them, not only the first.
    """

    upscale: int = 1
    """Factor between input and output size: 1, or 4 for super-resolution."""
    in_chans: int = 3
    """Channels of a frame; the first three are red, green and blue."""
    out_chans: int = 3
    """Channels that come out, added to as many of the input's."""
    window_size: Sequence[int] = (6, 8, 8)
    """Depth, height and width of a self attention window. Mutual attention takes depth 2."""
    depths: Sequence[int]
    """Blocks of each of the seven aligning stages, then of each group of the last stage."""
    indep_reconsts: Sequence[int] = ()
    """Places in ``depths`` whose groups look at single frames (window depth 1)."""
    embed_dims: Sequence[int]
    """Channels, for each entry of ``depths``."""
    num_heads: Sequence[int]
    """Attention heads, for each entry of ``depths``."""
    mul_attn_ratio: float = 0.75
    """Share of a stage's blocks that have mutual attention."""
    mlp_ratio: float = 2.0
    """Hidden channels of a feed-forward layer, as a multiple of its input's."""
    qkv_bias: bool = True
    """Whether query, key and value projections have a bias."""
    drop_path_rate: float = 0.0
    """How often the last block's branches are left out in training; earlier ones less often."""
    pa_frames: int = 2
    """Neighbours that each frame is aligned with, both sides together; 0 aligns nothing."""
    deformable_groups: int = 16
    """Slices of the channels that choose their sampling places apart."""
    flow_channels: Sequence[int] = (32, 64, 32, 16)
    """Widths inside the flow estimator; other ones do not fit published weights."""
    noise_map: bool = False
    """Whether a further channel tells how much noise there is, over 255 levels."""

    def __post_init__(self) -> None:
        problems = [*self._problems_of_lists(), *self._problems_of_numbers()]
        problems = problems or self._problems_of_widths()
        if problems:
            raise ConfigError("VRT cannot be built: " + "; ".join(problems))

    @property
    def num_steps(self) -> int:
        """Neighbours on each side."""
        return self.pa_frames // 2

    @property
    def first_channels(self) -> int:
        """Channels of the first convolution: a frame, four samples of each neighbour, the noise."""
        return self.in_chans * (9 if self.pa_frames else 1) + self.noise_map

    def drop_rates(self, index: int) -> list[float]:
        """Rates of the blocks of one entry of ``depths``, on a line from 0 over all blocks."""
        before, last = sum(self.depths[:index]), max(sum(self.depths) - 1, 1)
        return [self.drop_path_rate * (before + i) / last for i in range(self.depths[index])]

    def _problems_of_lists(self) -> list[str]:
        problems = []
        if len(self.depths) <= NUM_ALIGNED_STAGES:
            problems.append(
                f"depths has {len(self.depths)} entries; give one for each of the "
                f"{NUM_ALIGNED_STAGES} aligning stages and at least one for the last stage"
            )
        for name, values in (("embed_dims", self.embed_dims), ("num_heads", self.num_heads)):
            if len(values) != len(self.depths):
                problems.append(f"{name} has {len(values)} entries, depths {len(self.depths)}")
        if len(self.window_size) != 3:
            problems.append("window_size must be depth, height and width")
        if len(self.flow_channels) != 4:
            problems.append("flow_channels must be four widths")
        problems += [
            f"indep_reconsts names place {place}, which is no group of the last stage"
            for place in self.indep_reconsts
            if not NUM_ALIGNED_STAGES <= place < len(self.depths)
        ]
        return problems

    def _problems_of_numbers(self) -> list[str]:
        problems = []
        if self.upscale not in (1, 4):
            problems.append(f"upscale is {self.upscale}; choose 1 or 4")
        if self.pa_frames not in (0, 2, 4, 6):
            problems.append(f"pa_frames is {self.pa_frames}; choose 0, 2, 4 or 6")
        if self.in_chans < RGB or not 1 <= self.out_chans <= self.in_chans:
            problems.append("in_chans must be at least 3, and out_chans no larger")
        if not 0 <= self.drop_path_rate < 1:
            problems.append(f"drop_path_rate is {self.drop_path_rate}; it must lie in [0, 1)")
        if not 0 <= self.mul_attn_ratio <= 1:
            problems.append(f"mul_attn_ratio is {self.mul_attn_ratio}; it must lie in [0, 1]")
        return problems

    def _problems_of_widths(self) -> list[str]:
        problems = [
            f"embed_dims[{i}] is {dim}, no multiple of its {heads} heads"
            for i, (dim, heads) in enumerate(zip(self.embed_dims, self.num_heads, strict=True))
            if dim % heads
        ]
        aligned = self.embed_dims[:NUM_ALIGNED_STAGES]
        dim = aligned[0]
        if len(set(aligned)) > 1 or len(set(self.embed_dims[NUM_ALIGNED_STAGES:])) > 1:
            problems.append("embed_dims must agree over the aligning stages and over the last one")
        if dim % 4:
            problems.append(f"embed_dims[0] is {dim}; going up a scale needs a multiple of 4")
        if self.pa_frames:
            problems += self._problems_of_alignment(dim)
        return problems

    def _problems_of_alignment(self, dim: int) -> list[str]:
        steps, groups = self.num_steps, self.deformable_groups
        problems = []
        if dim % steps:
            problems.append(f"embed_dims[0] is {dim}, no multiple of {steps} neighbours a side")
        if dim * steps % groups:
            problems.append(
                f"{dim} channels of {steps} neighbours a side do not divide into {groups} "
                "deformable groups"
            )
        if 9 * groups % steps:
            problems.append(f"{groups} deformable groups do not share out over {steps} neighbours")
        return problems


VRT_GOPRO: Final[VRTSettings] = {
    "upscale": 1,
    "in_chans": 3,
    "out_chans": 3,
    "window_size": (6, 8, 8),
    "depths": (8,) * 7 + (4,) * 4,
    "indep_reconsts": (9, 10),
    "embed_dims": (96,) * 7 + (120,) * 4,
    "num_heads": (6,) * 11,
    "mul_attn_ratio": 0.75,
    "mlp_ratio": 2.0,
    "qkv_bias": True,
    "drop_path_rate": 0.2,
    "pa_frames": 2,
    "deformable_groups": 16,
    "flow_channels": (32, 64, 32, 16),
}
"""The published deblurring model 006 (GoPro), and 005 and 007, which are the same network.

The published ``img_size`` is left out: it is the crop of their training, and no weight or
operation depends on it.
"""

VRT_SMALL: Final[VRTSettings] = {
    **VRT_GOPRO,
    "window_size": (2, 8, 8),
    "depths": (2, 4, 4, 4, 4, 4, 2, 2, 2),
    "indep_reconsts": (8,),
    "embed_dims": (24,) * 9,
    "num_heads": (2,) * 9,
    "mul_attn_ratio": 0.5,
    "drop_path_rate": 0.1,
    "deformable_groups": 2,
    "flow_channels": (8, 16, 8, 4),
}
"""Every kind of part of `VRT_GOPRO` at a width that one core walks through; 719,157 parameters.

A quarter of the channels and self attention over two frames instead of six. Half of a stage's
blocks are mutual, and the stages below full size have two of each kind, so that shifted windows
occur in both groups. The last stage has one group over frame pairs and one over single frames.
The flow estimator is narrow, for at its published width it would cost more than all the rest.
"""
