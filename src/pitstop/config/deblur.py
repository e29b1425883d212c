"""Settings of video deblurring with and without a spike camera (VRT, VRT-Spike)."""

from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field

from pitstop.config.quantities import BelowOne, Count, Name, NonNegative, Positive, Word, whole
from pitstop.config.rules import Rule, RuleSet, rules_for
from pitstop.config.sections import (
    DataSection,
    LossSection,
    LossTerm,
    ModelSection,
    RunConfig,
    Section,
)
from pitstop.config.workloads import WorkloadSections

MultipleOf8 = Annotated[Count, Field(multiple_of=8)]


class DeblurData(DataSection):
    """Clips of blurred and sharp frames, and the spikes recorded beside them."""

    crop: MultipleOf8 | None = 256
    """Side in pixels of the random square cut for training; null for whole frames."""

    eval_crop: MultipleOf8 | None = None
    """Side in pixels of the centre square used in evaluation; null for whole frames, which is
    what published numbers use."""

    clip_len: Count = 6
    """Frames in one sample."""

    clip_stride: Count = 1
    """Frames between the starts of neighbouring samples of a clip."""

    augment: Literal["none", "flips"] = "flips"
    """Mirror and transpose each sample at random, all its frames alike."""

    order: Literal["shuffle", "sequence"] = "shuffle"
    """Order of an epoch: all samples shuffled, or samples of a clip kept together."""

    blur: Literal["blur", "blur_gamma"] = "blur"
    """Folder of the blurred frames; numbers from the two are not comparable."""

    image_types: tuple[Name, ...] = ("png", "jpg", "jpeg")
    """Endings of image files."""

    spikes: Literal["live", "precomputed"] = "live"
    """Bin spikes when a sample is read, or read bins written beforehand."""

    spike_dir: Word = "spike"
    """Folder of a clip that holds its spike files."""

    voxel_dir: Word = "spike_vox"
    """Folder of a clip that holds precomputed bins."""

    spike_height: Count = 360
    """Rows of a spike frame in pixels; GoPro with simulated spikes has 360, a Vidar camera 250."""

    spike_width: MultipleOf8 = 640
    """Columns of a spike frame in pixels; GoPro with simulated spikes has 640, a Vidar camera
    400."""

    voxel_bins: Count = 32
    """Bins in time into which the spikes of one frame are counted."""

    log1p: bool = True
    """Feed log(1 + count) instead of the count."""


class SpikeEncoderSection(Section):
    """The branch that reads spikes."""

    channels: Count = 96
    """Channels of the branch at every scale."""

    temporal_strides: tuple[Count, Count, Count] = (1, 1, 1)
    """Strides in time of the three downsamplings."""

    spatial_strides: tuple[Count, Count, Count] = (2, 2, 2)
    """Strides in space of the three downsamplings."""

    heads: Count = 4
    """Heads of the attention over time."""

    dropout: BelowOne = 0.0
    """Dropout in the attention over time."""

    mlp_ratio: Positive = 2.0
    """Width of the feed-forward part over the channels."""

    chunk: Count | None = None
    """Side in pixels of the square worked on at once; null for the whole image."""


class FusionSection(Section):
    """The cross-attention that brings spikes into the stages 1 to 4 of VRT."""

    heads: Count = 4
    """Heads of the attention."""

    dropout: BelowOne = 0.0
    """Dropout in the attention."""

    mlp_ratio: Positive = 2.0
    """Width of the feed-forward part over the channels."""

    chunk: Count | None = None
    """Side in pixels of the square worked on at once; null for the whole image."""


class VrtModel(ModelSection):
    """VRT, model 006 by default, with the spike branch in the kind vrt_spike."""

    depths: tuple[Count, ...] = (8,) * 7 + (4,) * 4
    """Attention blocks of each stage: seven stages, then the groups that make up stage 8."""

    embed_dims: tuple[Count, ...] = (96,) * 7 + (120,) * 4
    """Channels, one number for each entry of `model.depths`."""

    heads: Count = 6
    """Attention heads in every block."""

    window: tuple[Count, Count, Count] = (6, 8, 8)
    """Attention window: frames, rows, columns."""

    indep_reconsts: tuple[Count, ...] = (9, 10)
    """Positions in `model.depths`, from 0, of groups that look at one frame at a time."""

    mlp_ratio: Positive = 2.0
    """Width of the feed-forward parts over the channels."""

    drop_path: BelowOne = 0.2
    """Probability of leaving out the deepest block in training."""

    pa_frames: Annotated[Literal[2, 4, 6], BeforeValidator(whole)] = 2
    """Neighbouring frames each frame is aligned with."""

    deformable_groups: Count = 16
    """Groups of the deformable convolution."""

    spike: SpikeEncoderSection = SpikeEncoderSection()
    """The spike branch; vrt_spike only."""

    fusion: FusionSection = FusionSection()
    """The fusion with the spike branch; vrt_spike only."""


class CharbonnierTerm(LossTerm):
    """Mean of sqrt(d^2 + eps) over all pixels."""

    eps: Positive = 1e-6
    """Number under the root; not squared."""


class PerceptualTerm(LossTerm):
    """Distance between VGG16 features."""

    weight: NonNegative = 0.0
    """Weight of the term in the sum; 0 leaves it out."""

    layers: tuple[Name, ...] = ("relu3_3",)
    """VGG16 layers that are compared."""


class DeblurLoss(LossSection):
    """Distance between restored and sharp frames."""

    charbonnier: CharbonnierTerm = CharbonnierTerm()
    """Smooth absolute difference."""

    perceptual: PerceptualTerm = PerceptualTerm()
    """Difference of VGG16 features."""


def _data(config: RunConfig) -> DeblurData:
    assert isinstance(config.data, DeblurData)
    return config.data


def _model(config: RunConfig) -> VrtModel:
    assert isinstance(config.model, VrtModel)
    return config.model


def _loss(config: RunConfig) -> DeblurLoss:
    assert isinstance(config.loss, DeblurLoss)
    return config.loss


def _sees_no_spikes(config: RunConfig) -> bool:
    return config.model.kind == "vrt"


_SPIKE_DATA: Final = ("spikes", "spike_dir", "spike_height", "spike_width", "voxel_bins", "log1p")

_INERT: Final = (
    *rules_for(
        (*(f"data.{name}" for name in _SPIKE_DATA), "model.spike", "model.fusion"),
        reads=("model.kind",),
        broken=_sees_no_spikes,
        why="has no effect: model.kind is vrt, which sees no spikes; vrt_spike does",
    ),
    Rule(
        key="data.voxel_dir",
        reads=("model.kind", "data.spikes"),
        broken=lambda c: _sees_no_spikes(c) or _data(c).spikes == "live",
        why="has no effect: no precomputed bins are read",
    ),
    Rule(
        key="data.crop",
        reads=("train.crop_schedule",),
        broken=lambda c: any(epoch == 0 for epoch, _ in c.train.crop_schedule),
        why="has no effect: train.crop_schedule sets the crop from epoch 0 on",
    ),
    Rule(
        key="eval.tile",
        reads=("data.eval_crop",),
        broken=lambda c: (
            c.eval.tile is not None
            and (crop := _data(c).eval_crop) is not None
            and crop <= c.eval.tile
        ),
        why="has no effect: data.eval_crop is {c.data.eval_crop}, which fits into one tile",
    ),
)

_CONFLICTS: Final = (
    Rule(
        key="model.depths",
        reads=(),
        broken=lambda c: len(_model(c).depths) < 8,
        why="must have at least 8 entries: seven stages and one group of stage 8",
    ),
    Rule(
        key="model.embed_dims",
        reads=("model.depths",),
        broken=lambda c: len(_model(c).embed_dims) != len(_model(c).depths),
        why="must have one entry for each entry of model.depths",
    ),
    Rule(
        key="model.embed_dims",
        reads=("model.heads",),
        broken=lambda c: any(dim % _model(c).heads for dim in _model(c).embed_dims),
        why="must be multiples of model.heads, which is {c.model.heads}",
    ),
    Rule(
        key="model.indep_reconsts",
        reads=("model.depths",),
        broken=lambda c: any(
            not 7 <= at < len(_model(c).depths) for at in _model(c).indep_reconsts
        ),
        why="must name groups of stage 8: positions from 7 to the last of model.depths",
    ),
    Rule(
        key="train.crop_schedule",
        reads=(),
        broken=lambda c: any(crop % 8 for _, crop in c.train.crop_schedule),
        why="must have crops that are multiples of 8",
    ),
    Rule(
        key="eval.tile",
        reads=(),
        broken=lambda c: (c.eval.tile or 0) % 8 != 0,
        why="must be a multiple of 8, not {c.eval.tile}",
    ),
)

_RISKS: Final = (
    Rule(
        key="data.clip_len",
        reads=(),
        broken=lambda c: _data(c).clip_len % 2 == 1,
        why="is odd: the two-frame windows pad {c.data.clip_len} frames with an empty one, which "
        "costs as much as a real one",
    ),
    Rule(
        key="model.window",
        reads=("data.crop",),
        broken=lambda c: (
            (crop := _data(c).crop) is not None
            and any(crop // 8 % side for side in _model(c).window[1:])
        ),
        why="does not divide the crop at the coarsest scale (an eighth of {c.data.crop}), so part "
        "of the work is padding",
    ),
    Rule(
        key="loss.charbonnier.eps",
        reads=("train.precision",),
        broken=lambda c: c.train.precision == "fp16" and _loss(c).charbonnier.eps < 6e-8,
        why="is below the smallest number fp16 can hold (6e-8)",
    ),
)

DEBLUR: Final = WorkloadSections(
    name="deblur",
    data=DeblurData,
    model=VrtModel,
    loss=DeblurLoss,
    rules=RuleSet(inert=_INERT, conflicts=_CONFLICTS, risks=_RISKS),
)
