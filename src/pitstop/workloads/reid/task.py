"""Re-identification as the engine sees it: records of people in, features out, judged by search."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import yaml
from torch import Tensor, nn
from torch.nn import functional

from pitstop.config.load import config_from
from pitstop.config.sections import ModelSection, RunConfig, TrainSection
from pitstop.config.workloads.reid import ClipReidModel, ReidData, ReidLoss
from pitstop.data.check import DataCheck
from pitstop.data.pack import Frames, PackSummary, beside
from pitstop.data.sampling.pk_sampler import PKSampler
from pitstop.data.sampling.samplers import Batches, Deal, train_order
from pitstop.errors import CheckpointError, ConfigError, DataError
from pitstop.records.pictures import PictureRow
from pitstop.train.task import ExportForm, FilesMade, Loss, Metrics, Submission
from pitstop.workloads.reid.data.batch import ReidBatch, ReidSample, collate
from pitstop.workloads.reid.data.checking import check_people
from pitstop.workloads.reid.data.dataset import ReidPeople, ReidSamples, load_people, train_records
from pitstop.workloads.reid.data.modalities import MODALITIES
from pitstop.workloads.reid.data.packing import pack_people
from pitstop.workloads.reid.data.public_sets import find_public_set
from pitstop.workloads.reid.data.queries import EvalSet, PackedImages, eval_set
from pitstop.workloads.reid.data.tokens import FolderTokenizer, words_sum
from pitstop.workloads.reid.encoding import FileEncoder
from pitstop.workloads.reid.exporting import reid_export_form
from pitstop.workloads.reid.losses import build_terms, judge
from pitstop.workloads.reid.metrics import HIGHER_IS_BETTER, ItemTokens, RetrievalQuality
from pitstop.workloads.reid.model.clip import ReidModel, ReidOutput, ReidShape
from pitstop.workloads.reid.model.pretrained import load_clip
from pitstop.workloads.reid.model.towers import BACKBONES, CaptionShape
from pitstop.workloads.reid.protocol import SCORES
from pitstop.workloads.reid.public_protocol import SYSU_METRICS
from pitstop.workloads.reid.reranking import Reranking
from pitstop.workloads.reid.retrieval import Search, check_folders, search_folders
from pitstop.workloads.reid.submission import check_submission, write_rankings

# A network that is built without a run, such as to plan its memory, has no data to look at.
_CLIP_WORDS: Final = 49_408
_PLANNED_PEOPLE: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _EpochLength:
    """How steps become epochs."""

    batches: int
    """Of an epoch on each rank."""
    accumulate: int

    def epoch_at(self, step: int) -> int:
        return step * self.accumulate // self.batches


class ReidTask:
    """CLIP on records of people in up to five modalities.

    Raises:
        ConfigError: Where settings ask for what is not built or cannot be had.
    """

    name = "reid"
    loss_is_separable = False

    def __init__(
        self,
        *,
        data: ReidData,
        model: ClipReidModel,
        loss: ReidLoss,
        train: TrainSection,
        seed: int,
    ) -> None:
        self.nominal_count = float(train.batch_size)
        self.higher_is_better: Mapping[str, bool] = _known_metrics(data)
        self._data = data
        self._model = model
        self._train = train
        self._seed = seed
        self._terms = build_terms(loss)
        self._people: ReidPeople | None = None
        self._records: ReidSamples | None = None
        self._eval_set: EvalSet | None = None
        self._packed: PackedImages | None = None
        self._epoch_length: _EpochLength | None = None
        self._search: Search | None = None
        self._notes: tuple[str, ...] = ()
        self._submits = False
        self._taken: tuple[int, int] | None = None

    def start_notes(self) -> tuple[str, ...]:
        """Say which weights of a file the network starts from, where there was a choice."""
        return self._notes

    def build_model(self) -> ReidModel:
        """Make the network for the people and words of the dataset, with weights where named.

        Raises:
            ConfigError: Where the weights cannot be read, or do not fit the network.
            DataError: Where the dataset cannot be used.
        """
        model = ReidModel(self._shape(self._model), kernels=self._model.kernels)
        if self._model.weights is not None:
            self._notes = load_clip(model, self._model.weights, key=self._model.weights_key)
        if self._model.freeze_backbone:
            for parameter in model.backbone_parameters():
                parameter.requires_grad = False
        return model

    def build_teacher(self, config_yaml: str) -> ReidModel:
        """Make the network that a checkpoint's own configuration describes.

        Raises:
            ConfigError: Where that is no network for re-identification.
        """
        section = _require_clip(config_from(yaml.safe_load(config_yaml)).config.model)
        if section.embed_dim != self._model.embed_dim:
            raise ConfigError(
                f"the teacher's features have {section.embed_dim} numbers and this model's "
                f"{self._model.embed_dim}; set model.embed_dim as it had it"
            )
        return ReidModel(self._shape(section), kernels=self._model.kernels)

    def train_samples(self) -> ReidSamples:
        """Look at the training people; once, since the network is made for them."""
        if self._records is None:
            self._records = train_records(
                self._loaded_people(), self._data, seed=self._seed, text_len=self._model.text_len
            )
        return self._records

    def train_batches(self, samples: ReidSamples, deal: Deal) -> Batches:
        """Give batches of P people with K records each, or of records shuffled.

        Raises:
            DataError: Where there are too few people or records for a batch, or nobody for a term
                of the loss to compare.
        """
        self._check_people(samples, deal.batch_size)
        batches = self._ordered(samples, deal)
        self._epoch_length = _EpochLength(batches=len(batches), accumulate=self._train.accumulate)
        return batches

    def eval_samples(self) -> PackedImages:
        """Give every image and caption of the evaluation once, several to a record."""
        if self._packed is None:
            self._packed = self._queries().images.packed()
        return self._packed

    @staticmethod
    def collate(samples: list[ReidSample]) -> ReidBatch:
        """Put records side by side."""
        return collate(samples)

    def blank_batch(self, batch_size: int) -> ReidBatch:
        """Make records that have everything, of pairs of people, for planning."""
        height, width = self._data.image_size
        kinds = len(MODALITIES)
        captions = torch.zeros(batch_size, self._model.text_len, dtype=torch.int64)
        captions[:, -1] = self._words()[1]
        present = torch.ones(batch_size, kinds, dtype=torch.bool)
        return ReidBatch(
            images=torch.zeros(batch_size, kinds - 1, 3, height, width, dtype=torch.uint8),
            present=present,
            tokens=captions,
            persons=torch.arange(batch_size) // max(1, self._data.records_per_id),
            cameras=torch.zeros(batch_size, dtype=torch.int64),
            rows=torch.arange(batch_size),
            present_on_host=present,
        )

    def samples_in(self, batch: ReidBatch) -> int:
        """Count the records of a batch."""
        return len(batch.images)

    def to_device(self, batch: ReidBatch, device: torch.device) -> ReidBatch:
        """Copy a batch as the bytes it is; the network makes numbers of them."""
        return batch.to(device)

    def forward(self, model: nn.Module, batch: ReidBatch) -> ReidOutput:
        """Describe records, together and by modality, and say who they are."""
        return model(batch.images, batch.present, batch.tokens)

    def predict(self, model: nn.Module, batch: ReidBatch) -> ItemTokens:
        """Encode each image and caption by itself; what a record holds has nothing in common."""
        assert isinstance(model, ReidModel)
        encode = model.encode_with_mirror if self._data.flip_test else model.encode
        tokens = encode(batch.images, batch.present_on_host, batch.tokens)
        return ItemTokens(tokens=tokens, rows=batch.rows)

    def loss(self, output: ReidOutput, batch: ReidBatch, step: int) -> Loss:
        """Judge an output; the epoch decides weights and temperature."""
        return judge(self._terms, output, batch, step=step, epoch=self._epoch_at(step))

    def distance(self, output: ReidOutput, teacher_output: ReidOutput) -> Tensor:
        """Give the mean cosine distance to a teacher's features."""
        cosines = functional.cosine_similarity(
            output.together.float(), teacher_output.together.float(), dim=-1
        )
        return (1 - cosines).mean()

    def metrics(self) -> RetrievalQuality:
        """Make a fresh collector of quality over the queries of the evaluation."""
        return RetrievalQuality(
            self._queries(),
            self.eval_samples(),
            self._model.embed_dim,
            reranking=reranking_of(self._data),
        )

    def expect_submission(self) -> None:
        """Let an evaluation pass whose lists do not say who is who."""
        self._submits = True

    def write_submission(
        self, metrics: Metrics, state: Tensor, submission: Submission
    ) -> tuple[str, ...]:
        """Write the ranking of every query, and read the file back as a judge would.

        Raises:
            DataError: Where it cannot be written, or the lists lack what the format needs.
        """
        assert isinstance(metrics, RetrievalQuality)
        evaluation = self._queries()
        if evaluation.searches:
            raise DataError(
                f"{self._root()} is a public set whose truth is known, so there is nothing to hand "
                "in; leave out --submit"
            )
        rankings = metrics.rankings(state, top=submission.top)
        write_rankings(evaluation, rankings, submission.path, style=submission.style)
        found = check_submission(
            submission.path, evaluation, style=submission.style, top=submission.top
        )
        return (found,)

    def draw_measured(
        self, metrics: Metrics, state: Tensor, folder: Path, *, count: int
    ) -> list[PictureRow]:
        """Show queries beside the first images of their ranking, marked right or wrong."""
        assert isinstance(metrics, RetrievalQuality)
        return metrics.draw(state, folder, count=count)

    def write_output(
        self, output: Any, batch: ReidBatch, indices: Sequence[int], folder: Path
    ) -> list[Path]:
        """Nothing: what `pitstop infer` writes is a search in folders of their own."""
        del output, batch, indices, folder
        return []

    def names_files(self) -> bool:
        """Look at the folders to search for and to search in.

        Raises:
            ConfigError: Where the configuration names none.
            DataError: Where they cannot be used.
        """
        if self._data.queries is None or self._data.gallery is None:
            raise ConfigError(
                "there is nothing to search for: set data.queries to a folder of images and "
                "data.gallery to one of colour images"
            )
        self._search = check_folders(self._data.queries, self._data.gallery)
        return True

    def take_sizes(self, tensors: Mapping[str, Tensor]) -> None:
        """Make the network for the people and words that weights were trained on.

        A search in folders asks for nobody by name and reads no caption.

        Raises:
            CheckpointError: Where they are no weights of such a network.
        """
        people, words = tensors.get("neck.classifier.weight"), tensors.get("text.words.weight")
        if people is None or words is None or people.ndim != 2 or words.ndim != 2:
            raise CheckpointError(
                "the checkpoint holds no network for re-identification: it has no "
                "neck.classifier.weight or no text.words.weight"
            )
        self._taken = (len(people), len(words))

    def infer_files(self, model: nn.Module, folder: Path, device: torch.device) -> FilesMade:
        """Rank the gallery for every query; write rankings and pictures of some."""
        assert isinstance(model, ReidModel)
        assert self._search is not None, "checked before"
        encode = FileEncoder(
            model=model, size=self._data.image_size, device=device, mirror=self._data.flip_test
        )
        return search_folders(self._search, encode, folder)

    def check_data(self) -> DataCheck:
        """Read every image of the dataset, and its lists."""
        return check_people(self._root(), self._data)

    def pack_data(self, output: Path | None, *, frames: Frames) -> PackSummary:
        """Put the whole dataset into one file, decoded for images of `data.image_size`.

        Raises:
            DataError: Where something cannot be read; nothing is left behind.
        """
        root = self._root()
        return pack_people(
            root,
            beside(root) if output is None else output,
            frames=frames,
            image_size=self._data.image_size,
            split=self._data.split,
        )

    def export_form(self, model: nn.Module) -> ExportForm:
        """Give the feature of a record from its images, what it has, and its caption."""
        assert isinstance(model, ReidModel)
        return reid_export_form(model, self.blank_batch(1))

    def parts(self, model: nn.Module) -> Mapping[str, nn.Module]:
        """Name trunk, text tower and neck; what is left of a pass are patches and fusion."""
        assert isinstance(model, ReidModel)
        return model.named_parts()

    def regions(self, model: nn.Module) -> Sequence[nn.Module]:
        """List the blocks of both towers, and what comes before and after them."""
        assert isinstance(model, ReidModel)
        return model.named_regions()

    def _root(self) -> Path:
        if self._data.root is None:
            raise ConfigError("data.root is not set: name the folder of the dataset")
        return self._data.root

    def _loaded_people(self) -> ReidPeople:
        if self._people is None:
            folder = self._data.tokenizer
            tokenizer = None if folder is None else FolderTokenizer(folder)
            self._people = load_people(self._data, tokenizer=tokenizer)
        return self._people

    def _queries(self) -> EvalSet:
        if self._eval_set is None:
            self._eval_set = eval_set(
                self._loaded_people(), self._data, text_len=self._model.text_len
            )
            if self._eval_set.people == 0 and not self._submits:
                raise DataError(
                    f"{self._root()}: the lists of data.eval_split {self._data.eval_split} do not "
                    "say who is who, so nothing can be measured; set data.holdout above 0, or "
                    "write rankings with `pitstop eval --submit FILE`"
                )
        return self._eval_set

    def _shape(self, section: ClipReidModel) -> ReidShape:
        backbone = BACKBONES[section.backbone]
        height, width = self._data.image_size
        vocabulary, end_token, checksum = self._words()
        return ReidShape(
            backbone=backbone,
            grid=(height // backbone.patch, width // backbone.patch),
            captions=CaptionShape(
                vocabulary=vocabulary,
                length=section.text_len,
                end_token=end_token,
                words_sum=checksum,
            ),
            people=self._people_to_tell_apart(),
            embed_dim=section.embed_dim,
            rank=section.lora_rank,
            fusion_heads=section.fusion_heads,
            dropout=section.dropout,
        )

    def _people_to_tell_apart(self) -> int:
        if self._taken is not None:
            return self._taken[0]
        return _PLANNED_PEOPLE if self._data.root is None else self.train_samples().people

    def _words(self) -> tuple[int, int, int]:
        """Number of words, the end token, and a sum of the words that the dataset gave."""
        if self._taken is not None:
            return self._taken[1], self._taken[1] - 1, 0
        if self._data.root is None:
            return _CLIP_WORDS, _CLIP_WORDS - 1, 0
        tokenizer = self._loaded_people().tokenizer
        return tokenizer.vocab_size, tokenizer.end_id, words_sum(tokenizer)

    def _check_people(self, samples: ReidSamples, batch_size: int) -> None:
        """Speak of the settings that a configuration has; the sampler knows only its own."""
        paired = samples.paired
        if not paired and any(term.name == "sdm" for term in self._terms):
            raise DataError(
                f"{self._root()}: nobody to train on has both a colour image and another "
                "description, so loss.sdm has nothing to compare; set loss.sdm.weight=0, or add "
                "images or captions of the same people"
            )
        data = self._data
        if data.sampler == "shuffle":
            return
        wanted, there = batch_size // data.records_per_id, samples.people
        whom = "people"
        if data.require_pair:
            whom, there = "people with both a colour image and another description", paired
        if there < wanted:
            raise DataError(
                f"a batch takes {wanted} different people (train.batch_size {batch_size} / "
                f"data.records_per_id {data.records_per_id}), and {self._root()} has {there} "
                f"{whom} to train on; lower train.batch_size"
                + (", or set data.require_pair=false" if data.require_pair else "")
            )

    def _ordered(self, samples: ReidSamples, deal: Deal) -> Batches:
        data = self._data
        if data.sampler == "shuffle":
            return train_order(None, samples, deal)
        return PKSampler(
            samples.persons,
            samples.modality_masks,
            identities_per_batch=deal.batch_size // data.records_per_id,
            records_per_identity=data.records_per_id,
            seed=deal.seed,
            epoch_unit=data.epoch_unit,
            epoch_steps=data.epoch_steps,
            ensure_rgb=data.ensure_rgb,
            require_pair=data.require_pair,
            rank=deal.rank,
            world_size=deal.world_size,
        )

    def _epoch_at(self, step: int) -> int:
        return 0 if self._epoch_length is None else self._epoch_length.epoch_at(step)


def _known_metrics(data: ReidData) -> Mapping[str, bool]:
    """Name the scores of the protocol that a dataset is judged by."""
    public = None if data.root is None or data.holdout > 0 else find_public_set(data.root)
    if public is None:
        return HIGHER_IS_BETTER
    names = SYSU_METRICS if public.kind == "sysu_mm01" else SCORES
    return dict.fromkeys(names, True)


def reranking_of(data: ReidData) -> Reranking | None:
    """Read the settings of re-ranking off a configuration; None where it has none."""
    if not data.rerank:
        return None
    return Reranking(k1=data.rerank_k1, k2=data.rerank_k2, weight=data.rerank_weight)


def build_reid(config: RunConfig) -> ReidTask:
    """Make the task of a checked configuration.

    Raises:
        ConfigError: Where settings ask for what is not built.
    """
    assert isinstance(config.data, ReidData)
    assert isinstance(config.loss, ReidLoss)
    return ReidTask(
        data=config.data,
        model=_require_clip(config.model),
        loss=config.loss,
        train=config.train,
        seed=config.run.seed,
    )


def _require_clip(section: ModelSection) -> ClipReidModel:
    if not isinstance(section, ClipReidModel):
        raise ConfigError(
            f"a model of kind {section.kind} does not re-identify people; clip_reid does"
        )
    return section
