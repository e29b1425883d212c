"""Settings of bird's-eye-view segmentation: one camera (mono) and six (surround)."""

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BeforeValidator

from pitstop.config.quantities import (
    BelowOne,
    Count,
    Expect,
    FilePath,
    Natural,
    NonNegative,
    Positive,
    Word,
    whole,
)
from pitstop.config.rules import NO_CROPS, Rule, RuleSet
from pitstop.config.sections import DataSection, LossSection, LossTerm, ModelSection, RunConfig
from pitstop.config.workloads.by_kind import WorkloadSections


def _covers(bound: tuple[float, float, float]) -> tuple[float, float, float]:
    start, stop, step = bound
    if not (step > 0 and start < stop and (stop - start) / step <= 4096):
        raise ValueError(f"covers nothing, or too much: {bound}")
    return bound


Bound = Annotated[
    tuple[float, float, float],
    AfterValidator(_covers),
    Expect("start, stop and step with start below stop, such as [1, 50, 0.5]"),
]


class BevData(DataSection):
    """Camera images of nuScenes and what lies around the car."""

    eval_split: Word = "val"
    """Part of the dataset to evaluate on."""

    version: Word = "v1.0-trainval"
    """Version folder of the nuScenes tables."""

    image_size: tuple[Count, Count] = (600, 800)
    """Height and width in pixels of the image the network sees."""

    photometric: bool = True
    """Change brightness, contrast and colour of training images at random."""

    pictures: FilePath | None = None
    """Folder of plain pictures, at any depth, that `pitstop infer` looks at instead of the
    evaluation split; for six cameras, folders or file names name them (CAM_FRONT, ...). Null for
    the evaluation split."""

    calibration: FilePath | None = None
    """JSON file that says how the cameras of `data.pictures` see and stand; null to assume those of
    nuScenes, which is said."""


class MonoData(BevData):
    """One camera image is one sample."""

    labels: FilePath | None = None
    """Folder of label files, one PNG named by the token of its image; null makes labels of boxes,
    map and lidar points."""

    label_rules: Literal["geometry", "pon"] = "geometry"
    """How labels are made where there are no files of them: true shapes at the middle of cells
    (`geometry`), or cell by cell as the script of the PON benchmark makes them (`pon`); its figures
    are on those."""

    frequencies_from: Count = 64
    """Training samples, spread over the set, in which the frequency of each class is counted."""


class SurroundData(BevData):
    """Six camera images are one sample."""

    image_size: tuple[Count, Count] = (256, 704)
    """Height and width in pixels of the image the network sees."""

    cameras: Count = 6
    """Cameras shown in training; fewer than 6 leaves some out at random."""

    resize: tuple[Positive, Positive] = (0.38, 0.55)
    """Range of the random scale of training images."""

    rotate_deg: NonNegative = 5.4
    """Largest random rotation of training images, in degrees."""

    flip: bool = True
    """Mirror training images at random."""

    bev_augment: bool = True
    """Rotate, scale and mirror the ground plane at random, target included."""

    targets: Literal["map", "vehicle", "map+vehicle"] = "map+vehicle"
    """What is to be found: the six map classes, vehicles, or both."""

    min_visibility: Annotated[Literal[1, 2, 3, 4], BeforeValidator(whole)] = 1
    """Vehicles seen less than this by nuScenes' four levels are left out of the targets; 1 keeps
    all. Numbers of different levels are not comparable."""

    target_forward: Bound = (-50.0, 50.0, 0.5)
    """Cells of the targets in metres ahead of the car: start, stop, step."""

    target_across: Bound = (-50.0, 50.0, 0.5)
    """Cells of the targets in metres to its left: start, stop, step."""


class LssModel(ModelSection):
    """Lift-splat with a Swin backbone."""

    backbone: Word = "swin_t"
    """Image backbone."""

    out_stages: tuple[Natural, ...] = (3,)
    """Stages of the backbone, from 0, whose features are used."""

    drop_path: BelowOne = 0.0
    """Probability of leaving out the deepest block of the backbone in training."""

    depth: Bound = (1.0, 50.0, 1.0)
    """Depth bins in metres: start, stop, step."""

    channels: Count = 64
    """Channels of a lifted point."""

    x_bound: Bound = (-25.0, 25.0, 0.5)
    """Grid in metres across: start, stop, step."""

    forward_bound: Bound = (1.0, 50.0, 0.5)
    """Grid in metres ahead: start, stop, step."""

    height_bound: Bound = (-10.0, 10.0, 20.0)
    """Grid in metres of height: start, stop, step."""

    head_width: Count = 128
    """Channels in the middle of the first blocks behind the splat."""


class MonoModel(LssModel):
    """The one-camera network of the PON benchmark."""


class SurroundModel(LssModel):
    """The six-camera network."""

    out_stages: tuple[Natural, ...] = (1, 2, 3)
    """Stages of the backbone, from 0, whose features are used."""

    drop_path: BelowOne = 0.3
    """Probability of leaving out the deepest block of the backbone in training."""

    depth: Bound = (1.0, 60.0, 0.5)
    """Depth bins in metres: start, stop, step."""

    channels: Count = 80
    """Channels of a lifted point."""

    x_bound: Bound = (-51.2, 51.2, 0.4)
    """Grid in metres across: start, stop, step."""

    forward_bound: Bound = (-51.2, 51.2, 0.4)
    """Grid in metres ahead: start, stop, step."""

    head_width: Count = 160
    """Channels of the first stage behind the splat."""

    encoder_channels: Count = 256
    """Channels of joined image features and of what the heads read."""

    norm: Literal["batch", "group"] = "batch"
    """Norm of the convolutions: over the samples of a micro-batch, as published, or over groups of
    each sample's channels (`group`), which gives accumulation and ranks the results of the large
    batch."""


class PriorTerm(LossTerm):
    """Pull of unseen cells towards the class frequencies."""

    weight: NonNegative = 0.001
    """Weight of the term in the sum; 0 leaves it out."""


class FocalTerm(LossTerm):
    """Focal loss."""

    gamma: NonNegative = 2.0
    """How much easy cells count less; 0 is plain cross-entropy."""


class MonoLoss(LossSection):
    """Seen cells against the map, unseen cells against the class frequencies."""

    bce: LossTerm = LossTerm()
    """Cross-entropy of the seen cells, weighted by the square root of 1 / class frequency."""

    prior: PriorTerm = PriorTerm()
    """Cross-entropy of the unseen cells against the class frequencies."""


class SurroundLoss(LossSection):
    """Every cell of every class against the map."""

    focal: FocalTerm = FocalTerm()
    """Focal loss, summed over classes."""


def _surround(config: RunConfig) -> SurroundData:
    assert isinstance(config.data, SurroundData)
    return config.data


_RULES_INERT: Final = Rule(
    key="data.label_rules",
    reads=("data.labels",),
    broken=lambda c: isinstance(c.data, MonoData) and c.data.labels is not None,
    why="has no effect: labels are read from data.labels",
)

_CALIBRATION_INERT: Final = Rule(
    key="data.calibration",
    reads=("data.pictures",),
    broken=lambda c: isinstance(c.data, BevData) and c.data.pictures is None,
    why="has no effect: data.pictures is not set, and a nuScenes set has its own",
)

_SURROUND_CONFLICTS: Final = (
    Rule(
        key="data.resize",
        reads=(),
        broken=lambda c: _surround(c).resize[0] > _surround(c).resize[1],
        why="must be a range: the smaller number first",
    ),
    Rule(
        key="data.cameras",
        reads=(),
        broken=lambda c: _surround(c).cameras > 6,
        why="must be at most 6, not {c.data.cameras}",
    ),
)

BEV_MONO: Final = WorkloadSections(
    name="bev",
    data=MonoData,
    model=MonoModel,
    loss=MonoLoss,
    rules=RuleSet(inert=(*NO_CROPS, _RULES_INERT, _CALIBRATION_INERT)),
)
BEV_SURROUND: Final = WorkloadSections(
    name="bev",
    data=SurroundData,
    model=SurroundModel,
    loss=SurroundLoss,
    rules=RuleSet(inert=(*NO_CROPS, _CALIBRATION_INERT), conflicts=_SURROUND_CONFLICTS),
)
