"""Settings of person re-identification across modalities."""

from typing import Final, Literal

from pitstop.config.quantities import (
    BelowOne,
    Count,
    FilePath,
    Natural,
    NonNegative,
    Positive,
    Share,
    WeightByEpoch,
)
from pitstop.config.rules import NO_CROPS, Rule, RuleSet, idle_while, read_only_by, rules_for
from pitstop.config.sections import DataSection, LossSection, LossTerm, ModelSection, RunConfig
from pitstop.config.workloads.by_kind import WorkloadSections


class ReidData(DataSection):
    """Images of people in several modalities, and captions."""

    records: Literal["anchored", "single"] = "anchored"
    """One record is an RGB image with its caption and one image of each other modality of the same
    person (`anchored`), or one image (`single`)."""

    image_size: tuple[Count, Count] = (224, 224)
    """Height and width in pixels of the image the network sees."""

    modality_dropout: BelowOne = 0.15
    """Probability of hiding a modality of a training record."""

    tokenizer: FilePath | None = None
    """Folder with the `tokenizer.json` of the pretrained model; null for the words of the training
    captions."""

    queries: FilePath | None = None
    """Folder of images that `pitstop infer` searches for in `data.gallery`; a folder in it, or a
    file's name, says the modality (rgb, nir, cp, sk)."""

    gallery: FilePath | None = None
    """Folder of colour images that `pitstop infer` searches in."""

    flip_test: bool = False
    """Describe every image of an evaluation or a search by the mean of itself and its mirror
    image; takes twice as long."""

    rerank: bool = False
    """Order the gallery by k-reciprocal re-ranking instead of cosines. Figures with and without it
    are not comparable."""

    rerank_k1: Count = 20
    """Nearest images that may be reciprocal neighbours."""

    rerank_k2: Count = 6
    """Nearest images whose descriptions are averaged; 1 for none but its own."""

    rerank_weight: Share = 0.3
    """Share of the distance of features in the re-ranked one."""

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

    backbone: Literal["vit_b_16", "vit_b_32", "vit_l_14", "vit_s_16", "vit_ti_8", "tiny"] = (
        "vit_b_16"
    )
    """Sizes of the two towers: CLIP's own, or smaller ones that start from random weights."""

    weights: FilePath | None = None
    """CLIP's weights to start from: OpenAI's own file (`ViT-B-16.pt`), a folder that `transformers`
    can read, or a model's name on its hub; null for random ones."""

    lora_rank: Natural = 4
    """Rank of each modality's adapter; 0 for none."""

    freeze_backbone: bool = False
    """Train only what CLIP does not bring along: patch embeddings, adapters, projections, fusion
    and classifier."""

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
    """Similarity distribution matching: similarities of two modalities against who is who."""

    weight: NonNegative = 0.5
    """Weight of the term in the sum; 0 leaves it out."""

    weight_by_epoch: WeightByEpoch = ()
    """Factor on `weight` from each given epoch on, such as {0: 0, 5: 0.2}; empty for 1."""

    kind: Literal["guide", "irra"] = "guide"
    """Cross-entropy both ways, scores within 20 and temperatures between 0.15 and 0.5 (`guide`), or
    the Kullback-Leibler distance both ways (`irra`)."""

    temperature: Positive = 0.15
    """Temperature of the similarities; `irra` was published with 0.02."""

    temperature_by_epoch: WeightByEpoch = ()
    """Factor on `temperature` from each given epoch on, such as {0: 3, 5: 1}; empty for 1."""


class TripletTerm(LossTerm):
    """Distance to the furthest of the same person against that to the nearest stranger."""

    weight: NonNegative = 0.0
    """Weight of the term in the sum; 0 leaves it out."""

    margin: Positive = 0.3
    """By how much a stranger must be further away."""


class ReidLoss(LossSection):
    """Who it is, and that modalities agree on it."""

    id: IdentityTerm = IdentityTerm()
    """Classification of people."""

    sdm: SdmTerm = SdmTerm()
    """Similarity distribution matching of each modality with RGB."""

    triplet: TripletTerm = TripletTerm()
    """Distances between records with all that they have."""


PATCHES: Final = {
    "vit_b_16": 16,
    "vit_b_32": 32,
    "vit_l_14": 14,
    "vit_s_16": 16,
    "vit_ti_8": 8,
    "tiny": 8,
}
"""Side of a patch in pixels, by `model.backbone`."""

CLIP_BACKBONES: Final = ("vit_b_16", "vit_b_32", "vit_l_14")
"""Those that CLIP's weights exist for."""


def _data(config: RunConfig) -> ReidData:
    assert isinstance(config.data, ReidData)
    return config.data


def _model(config: RunConfig) -> ClipReidModel:
    assert isinstance(config.model, ClipReidModel)
    return config.model


def _loss(config: RunConfig) -> ReidLoss:
    assert isinstance(config.loss, ReidLoss)
    return config.loss


_INERT: Final = (
    *read_only_by(
        ("pk",),
        "data.sampler",
        *(f"data.{name}" for name in ("records_per_id", "ensure_rgb", "require_pair")),
        "data.epoch_unit",
        why="has no effect: only the pk sampler reads it, and data.sampler is {c.data.sampler}",
    ),
    Rule(
        key="data.epoch_steps",
        reads=("data.sampler", "data.epoch_unit"),
        broken=lambda c: _data(c).sampler != "pk" or _data(c).epoch_unit != "steps",
        why="has no effect: data.epoch_unit is not steps",
    ),
    *rules_for(
        (f"data.{name}" for name in ("rerank_k1", "rerank_k2", "rerank_weight")),
        reads=("data.rerank",),
        broken=lambda c: not _data(c).rerank,
        why="has no effect: data.rerank is false",
    ),
    *idle_while(
        "data.sampler", "pk", "the pk sampler yields full batches only", "loader.drop_last"
    ),
    *idle_while(
        "data.records",
        "single",
        "data.records is single, so a record has one modality",
        "data.modality_dropout",
    ),
    Rule(
        key="train.channels_last",
        reads=("model.kind",),
        broken=lambda c: c.train.channels_last,
        why="has no effect: {c.model.kind} cuts images into patches and multiplies matrices; it "
        "has no convolution",
    ),
    *NO_CROPS,
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
        key="data.gallery",
        reads=("data.queries",),
        broken=lambda c: (_data(c).queries is None) != (_data(c).gallery is None),
        why="and data.queries go together: name the folder to search in and the one to search for",
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

_MODEL_CONFLICTS: Final = (
    Rule(
        key="data.image_size",
        reads=("model.backbone",),
        broken=lambda c: any(side % PATCHES[_model(c).backbone] for side in _data(c).image_size),
        why="must be multiples of the patch of {c.model.backbone}: 8 pixels for tiny, otherwise "
        "as its name says",
    ),
    Rule(
        key="model.fusion_heads",
        reads=("model.embed_dim",),
        broken=lambda c: _model(c).embed_dim % _model(c).fusion_heads != 0,
        why="must divide model.embed_dim, which is {c.model.embed_dim}",
    ),
    Rule(
        key="model.weights",
        reads=("model.backbone",),
        broken=lambda c: _model(c).weights is not None and _model(c).backbone not in CLIP_BACKBONES,
        why="cannot be had: there are no weights of CLIP for {c.model.backbone}",
    ),
    Rule(
        key="data.tokenizer",
        reads=("model.weights",),
        broken=lambda c: _model(c).weights is not None and _data(c).tokenizer is None,
        why="is missing: the text tower of model.weights knows the words of its own tokenizer only",
    ),
    Rule(
        key="model.freeze_backbone",
        reads=("model.weights",),
        broken=lambda c: _model(c).freeze_backbone and _model(c).weights is None,
        why="cannot be true without model.weights: random weights would stay random",
    ),
    Rule(
        key="model.text_len",
        reads=(),
        broken=lambda c: _model(c).text_len < 3,
        why="must be at least 3: a start token, a word, and an end token",
    ),
    Rule(
        key="loss.sdm.temperature_by_epoch",
        reads=(),
        broken=lambda c: any(factor == 0 for _, factor in _loss(c).sdm.temperature_by_epoch),
        why="has a factor of 0, and similarities are divided by it",
    ),
)


def _clipped_temperatures(config: RunConfig) -> bool:
    """Whether the guide's definition would take another temperature than the one asked for."""
    term = _loss(config).sdm
    asked = [term.temperature * factor for _, factor in term.temperature_by_epoch]
    return term.kind == "guide" and any(
        not 0.15 <= one <= 0.5 for one in (asked or [term.temperature])
    )


_RISKS: Final = (
    Rule(
        key="loss.sdm.temperature",
        reads=("loss.sdm.kind", "loss.sdm.weight", "loss.sdm.temperature_by_epoch"),
        broken=lambda c: _loss(c).sdm.weight > 0 and _clipped_temperatures(c),
        why="leaves the range from 0.15 to 0.5 that loss.sdm.kind guide keeps it in; irra takes it "
        "as it is",
    ),
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
    rules=RuleSet(inert=_INERT, conflicts=_CONFLICTS + _MODEL_CONFLICTS, risks=_RISKS),
)
