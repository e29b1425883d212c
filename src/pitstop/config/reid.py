"""Settings of person re-identification across modalities."""

from typing import Final, Literal

from pitstop.config.quantities import (
    BelowOne,
    Count,
    Natural,
    NonNegative,
    Positive,
    Share,
    WeightByEpoch,
    Word,
)
from pitstop.config.rules import Rule, RuleSet, rules_for
from pitstop.config.sections import DataSection, LossSection, LossTerm, ModelSection, RunConfig
from pitstop.config.workloads import WorkloadSections


class ReidData(DataSection):
    """Images of people in several modalities, and captions."""

    records: Literal["anchored", "single"] = "anchored"
    """One record is an RGB image with its caption and one image of each other modality of the same
    person (`anchored`), or one image (`single`)."""

    image_size: tuple[Count, Count] = (224, 224)
    """Height and width in pixels of the image the network sees."""

    modality_dropout: BelowOne = 0.15
    """Probability of hiding a modality of a training record."""

    erase: Share = 0.3
    """Probability of erasing a rectangle of a training image."""

    holdout: BelowOne = 0.2
    """Share of the training people held back for evaluation; 0 for none."""

    sampler: Literal["pk", "shuffle"] = "pk"
    """Batches of P people with K records each, or records shuffled."""

    records_per_id: Count = 4
    """K: records of one person in a batch; P is `train.batch_size` / K."""

    ensure_rgb: bool = True
    """Put at least one RGB record of each person that has one into its K."""

    require_pair: bool = False
    """Take only people with both an RGB record and one of another modality."""

    epoch_unit: Literal["identities", "records", "steps"] = "records"
    """What one epoch passes over: every person once, every record once, or a number of steps."""

    epoch_steps: Count | None = None
    """Length of an epoch in steps where `data.epoch_unit` is `steps`."""


class ClipReidModel(ModelSection):
    """CLIP with one patch embedding and one low-rank adapter for each modality."""

    backbone: Word = "vit_b_16"
    """Vision tower."""

    lora_rank: Natural = 4
    """Rank of each modality's adapter; 0 for none."""

    freeze_backbone: bool = False
    """Train only what is not the backbone."""

    embed_dim: Count = 512
    """Length of a feature."""

    fusion_heads: Count = 8
    """Heads of the attention over modalities."""

    dropout: BelowOne = 0.5
    """Dropout before the classifier."""

    text_len: Count = 77
    """Longest caption in tokens."""


class IdentityTerm(LossTerm):
    """Cross-entropy over the people of the training set."""

    label_smoothing: BelowOne = 0.1
    """Share of the target spread over all people."""


class SdmTerm(LossTerm):
    """Match between the similarities of two modalities and who is who."""

    weight: NonNegative = 0.5
    """Weight of the term in the sum; 0 leaves it out."""

    weight_by_epoch: WeightByEpoch = ()
    """Factor on `weight` from each given epoch on, such as {0: 0, 5: 0.2}; empty for 1."""

    temperature: Positive = 0.15
    """Temperature of the similarities."""


class ReidLoss(LossSection):
    """Who it is, and that modalities agree on it."""

    id: IdentityTerm = IdentityTerm()
    """Classification of people."""

    sdm: SdmTerm = SdmTerm()
    """Similarity distribution matching of each modality with RGB."""


def _data(config: RunConfig) -> ReidData:
    assert isinstance(config.data, ReidData)
    return config.data


def _loss(config: RunConfig) -> ReidLoss:
    assert isinstance(config.loss, ReidLoss)
    return config.loss


_INERT: Final = (
    *rules_for(
        (f"data.{name}" for name in ("records_per_id", "ensure_rgb", "require_pair", "epoch_unit")),
        reads=("data.sampler",),
        broken=lambda c: _data(c).sampler != "pk",
        why="has no effect: only the pk sampler reads it, and data.sampler is {c.data.sampler}",
    ),
    Rule(
        key="data.epoch_steps",
        reads=("data.sampler", "data.epoch_unit"),
        broken=lambda c: _data(c).sampler != "pk" or _data(c).epoch_unit != "steps",
        why="has no effect: data.epoch_unit is not steps",
    ),
    Rule(
        key="loader.drop_last",
        reads=("data.sampler",),
        broken=lambda c: _data(c).sampler == "pk",
        why="has no effect: the pk sampler yields full batches only",
    ),
    Rule(
        key="data.modality_dropout",
        reads=("data.records",),
        broken=lambda c: _data(c).records == "single",
        why="has no effect: data.records is single, so a record has one modality",
    ),
    *rules_for(
        ("train.crop_schedule", "eval.tile"),
        reads=("model.kind",),
        broken=lambda _: True,
        why="has no effect: {c.model.kind} sees images of data.image_size, never crops or tiles",
    ),
)

_CONFLICTS: Final = (
    Rule(
        key="train.batch_size",
        reads=("data.records_per_id", "data.sampler"),
        broken=lambda c: (
            _data(c).sampler == "pk" and c.train.batch_size % _data(c).records_per_id != 0
        ),
        why="must be a multiple of data.records_per_id, which is {c.data.records_per_id}, "
        "not {c.train.batch_size}",
    ),
    Rule(
        key="data.records_per_id",
        reads=("data.require_pair", "data.sampler"),
        broken=lambda c: (
            _data(c).sampler == "pk" and _data(c).require_pair and _data(c).records_per_id < 2
        ),
        why="must be at least 2 for a pair, and data.require_pair is true",
    ),
    Rule(
        key="data.epoch_steps",
        reads=("data.epoch_unit", "data.sampler"),
        broken=lambda c: (
            _data(c).sampler == "pk"
            and _data(c).epoch_unit == "steps"
            and _data(c).epoch_steps is None
        ),
        why="is missing: data.epoch_unit is steps",
    ),
)

_RISKS: Final = (
    Rule(
        key="data.records_per_id",
        reads=("data.sampler", "data.records", "loss.sdm.weight"),
        broken=lambda c: (
            _data(c).sampler == "pk"
            and _data(c).records == "single"
            and _data(c).records_per_id == 1
            and _loss(c).sdm.weight > 0
        ),
        why="is 1: no person has a pair in a batch, so loss.sdm stays 0",
    ),
)

REID: Final = WorkloadSections(
    name="reid",
    data=ReidData,
    model=ClipReidModel,
    loss=ReidLoss,
    rules=RuleSet(inert=_INERT, conflicts=_CONFLICTS, risks=_RISKS),
)
