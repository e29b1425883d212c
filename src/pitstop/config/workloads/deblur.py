"""Settings of video deblurring with and without a spike camera (VRT, VRT-Spike)."""

from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field

from pitstop.config.quantities import (
    BelowOne,
    Bytes,
    Count,
    FilePath,
    Name,
    Natural,
    NonNegative,
    Positive,
    Word,
    whole,
)
from pitstop.config.rules import Rule, RuleSet, rules_for
from pitstop.config.sections import (
    DataSection,
    LossSection,
    LossTerm,
    ModelSection,
    RunConfig,
    Section,
)
from pitstop.config.workloads.by_kind import WorkloadSections

MultipleOf8 = Annotated[Count, Field(multiple_of=8)]

_VGG16: Final = tuple(
    f"relu{group}_{place}"
    for group, size in enumerate((2, 2, 3, 3, 3), start=1)
    for place in range(1, size + 1)
)
_VGG19: Final = tuple(
    f"relu{group}_{place}"
    for group, size in enumerate((2, 2, 4, 4, 4), start=1)
    for place in range(1, size + 1)
)
FEATURE_LAYERS: Final[dict[str, tuple[str, ...]]] = {
    "vgg16": _VGG16,
    "vgg19": _VGG19,
    "alexnet": tuple(f"relu{place}" for place in range(1, 6)),
    "squeezenet": ("relu1", *(f"fire{place}" for place in range(2, 10))),
}
"""Layers of each feature network that can be compared, in the order in which they come."""


class TilesSection(Section):
    """Whole frames restored piece by piece, in evaluation and inference."""

    border: Literal["cosine", "discard"] = "cosine"
    """What becomes of the overlap of neighbouring tiles: they fade into each other (`cosine`), or
    the half next to a tile's own border is thrown away (`discard`)."""

    memory: Bytes | None = None
    """Device memory, in bytes, that restoring may take. What two small tiles take is measured, and
    the largest tile that fits is used; where `eval.tile` is set, as many tiles of that side at once
    as fit, up to four. Null for tiles of `eval.tile`, one at a time."""

    frame_overlap: Natural = 0
    """Frames by which neighbouring segments of `data.clip_len` overlap when `data.frames` is
    restored; treated as `data.tiles.border` says."""


class LpipsSection(Section):
    """The metric LPIPS; measured where both files are given."""

    network: Literal["alexnet", "vgg16", "squeezenet"] = "alexnet"
    """Network whose features are compared; published numbers name theirs."""

    backbone: FilePath | None = None
    """File with the network's weights, by the names torchvision has for them."""

    weights: FilePath | None = None
    """File with the weights of the metric itself (lin0, lin1, ...); null for no LPIPS."""


class DeblurData(DataSection):
    """Clips of blurred and sharp frames, and the spikes recorded beside them."""

    crop: MultipleOf8 | None = 256
    """Side in pixels of the random square cut for training, of the sharp frames where the network
    enlarges; null for whole frames."""

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

    input: Literal["files", "bicubic", "noise"] = "files"
    """Frames to restore: those of `data.blur` (`files`), or made of the sharp ones, which are then
    all that a clip needs: smaller by `model.upscale` (`bicubic`), or with Gaussian noise."""

    noise_levels: tuple[NonNegative, NonNegative] = (0.0, 50.0)
    """Least and largest standard deviation of the noise of `data.input: noise`, in levels of 255;
    drawn anew for every training sample."""

    eval_noise: NonNegative = 30.0
    """Standard deviation of that noise in evaluation, in levels of 255. With `model.noise_map` the
    network is told so in evaluation and inference, and of files in training, too."""

    frames: FilePath | None = None
    """Folder of blurred frames that `pitstop infer` restores instead of the evaluation split; no
    sharp ones are needed. Null for the evaluation split."""

    frame_spikes: FilePath | None = None
    """Folder with the spikes of `data.frames`, a file of the same name for each frame."""

    tiles: TilesSection = TilesSection()
    """Whole frames piece by piece."""

    lpips: LpipsSection = LpipsSection()
    """The metric LPIPS."""

    spikes: Literal["live", "precomputed"] = "live"
    """Turn spikes into channels on the device (`live`), or read counts written beforehand."""

    voxels: Literal["counts", "tfp", "tfi", "raw"] = "counts"
    """What spikes become: counts in equal segments of the exposure, the share of planes with a
    spike around each centre (`tfp`), one over the interval between spikes at each centre (`tfi`),
    or the planes in the middle (`raw`); `data.voxel_bins` channels each."""

    tfp_reach: Natural = 20
    """Planes on each side of a centre that `tfp` averages over."""

    spike_dir: Word = "spike"
    """Folder of a clip that holds its spike files."""

    voxel_dir: Word = "spike_vox"
    """Folder of a clip that holds precomputed counts."""

    spike_height: Count = 360
    """Rows of a spike frame in pixels; GoPro with simulated spikes has 360, a Vidar camera 250.
    Where neither this nor `data.spike_width` is set, what the dataset's config.yaml says counts."""

    spike_width: MultipleOf8 = 640
    """Columns of a spike frame in pixels; GoPro with simulated spikes has 640, a Vidar camera
    400."""

    voxel_bins: Count = 32
    """Channels that the spikes of one frame become; with counts, bins in time."""

    log1p: bool = True
    """Feed log(1 + count) instead of the count."""


class SpikeEncoderSection(Section):
    """The branch that reads spikes."""

    channels: Count = 96
    """Channels of the branch at every scale."""

    temporal_strides: tuple[Count, Count, Count] = (1, 1, 1)
    """Strides in time of the three downsamplings."""

    spatial_strides: tuple[Count, Count, Count] = (2, 2, 2)
    """Strides in space of the three downsamplings; 2, as VRT's own stages go down."""

    heads: Count = 4
    """Heads of the attention over time."""

    dropout: BelowOne = 0.0
    """Dropout in the attention over time."""

    mlp_ratio: Positive = 2.0
    """Width of the feed-forward part over the channels."""

    chunk: Count | None = None
    """Side in pixels of the square worked on at once; null for the whole image."""


class FusionSection(Section):
    """How spikes come into VRT."""

    kind: Literal["cross_attention", "early"] = "cross_attention"
    """`cross_attention` lets the outputs of stages 1 to 4 ask the spike branch; `early` has no
    branch and hands spikes in as further channels of the frames."""

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

    pa_frames: Annotated[Literal[0, 2, 4, 6], BeforeValidator(whole)] = 2
    """Neighbouring frames each frame is aligned with; 0 for none: no flow is estimated, and nothing
    is warped."""

    upscale: Annotated[Literal[1, 4], BeforeValidator(whole)] = 1
    """How many times larger restored frames are along each side: 4 for super-resolution.
    `eval.tile` is of the frames that come in, `data.crop` and `data.eval_crop` of the sharp ones;
    vrt only."""

    noise_map: bool = False
    """Tell the network how much noise there is, as a further channel: non-blind denoising, VRT's
    model 008; vrt only."""

    deformable_groups: Count = 16
    """Groups of the deformable convolution."""

    start: Literal["random", "identity"] = "identity"
    """Untrained weights: with a last layer of zeros (`identity`), so that training begins from the
    blurred frame itself and not from noise laid over it, or drawn as published (`random`)."""

    spike: SpikeEncoderSection = SpikeEncoderSection()
    """The spike branch; vrt_spike only."""

    fusion: FusionSection = FusionSection()
    """The fusion with the spike branch; vrt_spike only."""


class CharbonnierTerm(LossTerm):
    """Mean of sqrt(d^2 + eps) over all pixels."""

    eps: Positive = 1e-6
    """Number under the root; not squared."""


class PerceptualTerm(LossTerm):
    """Mean absolute difference of features of a network that was trained to tell objects apart."""

    weight: NonNegative = 0.0
    """Weight of the term in the sum; 0 leaves it out."""

    network: Literal["vgg16", "vgg19", "alexnet", "squeezenet"] = "vgg16"
    """Network whose features are compared; `alexnet` and `squeezenet` are lighter."""

    weights: FilePath | None = None
    """File with the network's weights, by the names torchvision has for them; the term cannot be
    had without."""

    normalisation: Literal["imagenet", "caffe"] = "imagenet"
    """Colours the weights expect: scaled by ImageNet's mean and deviation, or by its mean alone
    over 255 levels (`caffe`), as torchvision's features-only weights of VGG16 do."""

    layers: Annotated[tuple[Name, ...], Field(min_length=1)] = ("relu3_3",)
    """Layers that are compared, such as relu3_3 of VGG, relu5 of AlexNet, fire5 of SqueezeNet."""


class DeblurLoss(LossSection):
    """Distance between restored and sharp frames."""

    charbonnier: CharbonnierTerm = CharbonnierTerm()
    """Smooth absolute difference."""

    perceptual: PerceptualTerm = PerceptualTerm()
    """Difference of features."""


def _data(config: RunConfig) -> DeblurData:
    assert isinstance(config.data, DeblurData)
    return config.data


def _model(config: RunConfig) -> VrtModel:
    assert isinstance(config.model, VrtModel)
    return config.model


def _loss(config: RunConfig) -> DeblurLoss:
    assert isinstance(config.loss, DeblurLoss)
    return config.loss


def _sees_spikes(config: RunConfig) -> bool:
    return config.model.kind != "vrt"


def _has_branch(config: RunConfig) -> bool:
    model = _model(config)
    return model.kind == "vrt_spike" and model.fusion.kind == "cross_attention"


def _sides(config: RunConfig) -> list[int | None]:
    """Sides of all that the model sees at once, in training and evaluation; None: whole frames."""
    data, schedule = _data(config), config.train.crop_schedule
    trained: list[int | None] = [side for _, side in schedule]
    if all(epoch > 0 for epoch, _ in schedule):
        trained.append(data.crop)
    if data.tiles.memory is not None and config.eval.tile is None:
        return [*trained, None]
    tested = [side for side in (data.eval_crop, config.eval.tile) if side is not None]
    return [*trained, min(tested, default=None)]


def _chunks_nothing(config: RunConfig, chunk: int | None) -> bool:
    sides = _sides(config)
    return chunk is not None and all(side is not None and side <= chunk for side in sides)


_SPIKE_DATA: Final = (
    "spikes",
    "spike_dir",
    "spike_height",
    "spike_width",
    "voxels",
    "voxel_bins",
    "tfp_reach",
    "log1p",
    "frame_spikes",
)
_ATTENTION: Final = ("heads", "dropout", "mlp_ratio", "chunk")

_START_INERT: Final = Rule(
    key="model.start",
    reads=("model.weights",),
    broken=lambda c: _model(c).weights is not None,
    why="has no effect: all weights come from model.weights",
)

_GROUPS_INERT: Final = Rule(
    key="model.deformable_groups",
    reads=("model.pa_frames",),
    broken=lambda c: _model(c).pa_frames == 0,
    why="has no effect: model.pa_frames is 0, so frames are not aligned",
)

_SPIKE_INERT: Final = (
    *rules_for(
        ("model.spike", *(f"model.fusion.{name}" for name in _ATTENTION)),
        reads=("model.kind", "model.fusion.kind"),
        broken=lambda c: c.model.kind == "vrt_spike" and not _has_branch(c),
        why="has no effect: model.fusion.kind is early, which has no spike branch",
    ),
    *(
        Rule(
            key=f"model.{part}.chunk",
            reads=("data.crop", "data.eval_crop", "eval.tile", "train.crop_schedule"),
            broken=lambda c, part=part: (
                _has_branch(c) and _chunks_nothing(c, getattr(_model(c), part).chunk)
            ),
            why="has no effect: nothing the model sees is larger, in training or evaluation, so "
            "all of it is worked on at once anyway",
        )
        for part in ("spike", "fusion")
    ),
    Rule(
        key="data.tfp_reach",
        reads=("model.kind", "data.voxels"),
        broken=lambda c: _sees_spikes(c) and _data(c).voxels != "tfp",
        why="has no effect: only tfp reads it, and data.voxels is {c.data.voxels}",
    ),
    Rule(
        key="data.log1p",
        reads=("model.kind", "data.voxels"),
        broken=lambda c: _sees_spikes(c) and _data(c).log1p and _data(c).voxels != "counts",
        why="has no effect: only counts have a logarithm, and data.voxels is {c.data.voxels}",
    ),
    Rule(
        key="data.frame_spikes",
        reads=("model.kind", "data.frames"),
        broken=lambda c: _sees_spikes(c) and _data(c).frames is None,
        why="has no effect: data.frames is not set, so no folder of frames is restored",
    ),
)

_TILE_INERT: Final = (
    Rule(
        key="data.tiles.border",
        reads=("eval.tile", "data.tiles.memory", "data.tiles.frame_overlap"),
        broken=lambda c: (
            c.eval.tile is None
            and _data(c).tiles.memory is None
            and _data(c).tiles.frame_overlap == 0
        ),
        why="has no effect: there are no tiles; set eval.tile, data.tiles.memory or "
        "data.tiles.frame_overlap",
    ),
    Rule(
        key="data.tiles.frame_overlap",
        reads=("data.frames",),
        broken=lambda c: _data(c).tiles.frame_overlap > 0 and _data(c).frames is None,
        why="has no effect: only data.frames is restored in segments that overlap, and it is not "
        "set",
    ),
    *rules_for(
        ("data.lpips.network", "data.lpips.backbone"),
        reads=("data.lpips.weights",),
        broken=lambda c: _data(c).lpips.weights is None,
        why="has no effect: data.lpips.weights is not set, so LPIPS is not measured",
    ),
)

_INPUT_INERT: Final = (
    Rule(
        key="data.blur",
        reads=("data.input",),
        broken=lambda c: _data(c).input != "files",
        why="has no effect: data.input is {c.data.input}, so frames are made of the sharp ones",
    ),
    Rule(
        key="data.noise_levels",
        reads=("data.input",),
        broken=lambda c: _data(c).input != "noise",
        why="has no effect: data.input is {c.data.input}, so no noise is made",
    ),
    Rule(
        key="data.eval_noise",
        reads=("data.input", "model.noise_map"),
        broken=lambda c: _data(c).input != "noise" and not _model(c).noise_map,
        why="has no effect: no noise is made (data.input is {c.data.input}), and the network is "
        "told of none (model.noise_map)",
    ),
)

_INPUT_CONFLICTS: Final = (
    Rule(
        key="model.upscale",
        reads=("model.kind",),
        broken=lambda c: _sees_spikes(c) and _model(c).upscale != 1,
        why="must be 1: networks of kind vrt_spike restore frames at their own size",
    ),
    Rule(
        key="model.noise_map",
        reads=("model.kind",),
        broken=lambda c: _sees_spikes(c) and _model(c).noise_map,
        why="must be false: networks of kind vrt_spike are not told the noise",
    ),
    Rule(
        key="data.input",
        reads=("model.kind",),
        broken=lambda c: _sees_spikes(c) and _data(c).input != "files",
        why="must be files: spikes of model.kind vrt_spike were recorded beside blurred frames",
    ),
    Rule(
        key="data.input",
        reads=("model.upscale",),
        broken=lambda c: (_data(c).input, _model(c).upscale) in (("bicubic", 1), ("noise", 4)),
        why="is {c.data.input}, which does not go with model.upscale {c.model.upscale}: bicubic "
        "makes frames smaller, noise leaves them as large as they are",
    ),
    Rule(
        key="data.noise_levels",
        reads=(),
        broken=lambda c: _data(c).noise_levels[0] > _data(c).noise_levels[1],
        why="must have the smaller level first",
    ),
)

_INERT: Final = (
    *_INPUT_INERT,
    _START_INERT,
    _GROUPS_INERT,
    *_SPIKE_INERT,
    *_TILE_INERT,
    *rules_for(
        (*(f"data.{name}" for name in _SPIKE_DATA), "model.spike", "model.fusion"),
        reads=("model.kind",),
        broken=lambda c: not _sees_spikes(c),
        why="has no effect: model.kind is vrt, which sees no spikes; vrt_spike does",
    ),
    Rule(
        key="data.voxel_dir",
        reads=("model.kind", "data.spikes"),
        broken=lambda c: not _sees_spikes(c) or _data(c).spikes == "live",
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
            and crop // _model(c).upscale <= c.eval.tile
        ),
        why="has no effect: data.eval_crop is {c.data.eval_crop}, which fits into one tile",
    ),
)

_SPIKE_CONFLICTS: Final = (
    Rule(
        key="model.spike.channels",
        reads=("model.kind", "model.embed_dims", "model.fusion.kind"),
        broken=lambda c: _has_branch(c) and _model(c).spike.channels != _model(c).embed_dims[0],
        why="must be the channels of the stages it is fused with (model.embed_dims), not "
        "{c.model.spike.channels}",
    ),
    *(
        Rule(
            key=f"model.{part}.heads",
            reads=("model.kind", "model.spike.channels", "model.fusion.kind"),
            broken=lambda c, part=part: (
                _has_branch(c) and _model(c).spike.channels % getattr(_model(c), part).heads != 0
            ),
            why="must divide model.spike.channels, which is {c.model.spike.channels}",
        )
        for part in ("spike", "fusion")
    ),
    Rule(
        key="model.spike.spatial_strides",
        reads=("model.kind",),
        broken=lambda c: _model(c).spike.spatial_strides != (2, 2, 2),
        why="must be [2, 2, 2]: spikes are fused with stages that VRT halves each time",
    ),
    Rule(
        key="data.voxels",
        reads=("model.kind", "data.spikes"),
        broken=lambda c: (
            _sees_spikes(c) and _data(c).spikes == "precomputed" and _data(c).voxels != "counts"
        ),
        why="must be counts: precomputed spikes are counts, and planes cannot be had from them",
    ),
    Rule(
        key="data.frame_spikes",
        reads=("model.kind", "data.frames"),
        broken=lambda c: (
            _sees_spikes(c) and _data(c).frames is not None and _data(c).frame_spikes is None
        ),
        why="is missing: model.kind is {c.model.kind}, which needs the spikes of data.frames",
    ),
)

_TILE_CONFLICTS: Final = (
    Rule(
        key="data.tiles.frame_overlap",
        reads=("data.clip_len",),
        broken=lambda c: 2 * _data(c).tiles.frame_overlap > _data(c).clip_len,
        why="must be at most half of data.clip_len, which is {c.data.clip_len}",
    ),
    Rule(
        key="data.lpips.backbone",
        reads=("data.lpips.weights",),
        broken=lambda c: _data(c).lpips.weights is not None and _data(c).lpips.backbone is None,
        why="is missing: LPIPS compares features of {c.data.lpips.network}, whose weights it needs",
    ),
    Rule(
        key="loss.perceptual.layers",
        reads=("loss.perceptual.network",),
        broken=lambda c: bool(
            (perceptual := _loss(c).perceptual).weight
            and not set(perceptual.layers) <= set(FEATURE_LAYERS[perceptual.network])
        ),
        why="names a layer that {c.loss.perceptual.network} does not have; vgg16 has relu1_1 to "
        "relu5_3, vgg19 relu1_1 to relu5_4, alexnet relu1 to relu5, squeezenet relu1 and fire2 to "
        "fire9",
    ),
)

_CONFLICTS: Final = (
    *_SPIKE_CONFLICTS,
    *_TILE_CONFLICTS,
    *_INPUT_CONFLICTS,
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
        key="model.deformable_groups",
        reads=("model.embed_dims", "model.pa_frames"),
        broken=lambda c: any(
            dim * (_model(c).pa_frames // 2) % _model(c).deformable_groups
            for dim in _model(c).embed_dims[:7]
        ),
        why="must divide the channels of stages 1 to 7 (model.embed_dims) times half of "
        "model.pa_frames, and is {c.model.deformable_groups}",
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
