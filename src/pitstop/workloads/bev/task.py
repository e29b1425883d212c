"""Bird's-eye-view segmentation as the engine sees it, from one camera or from six."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
import yaml
from torch import Tensor, nn

from pitstop.config.load import config_from
from pitstop.config.sections import LossSection, ModelSection, RunConfig
from pitstop.config.workloads.bev import LssModel, MonoData, MonoLoss, SurroundData, SurroundLoss
from pitstop.data.check import DataCheck
from pitstop.data.loader.prefetch import on_device
from pitstop.data.pack import Frames, PackSummary, beside
from pitstop.errors import ConfigError
from pitstop.records.pictures import PictureRow
from pitstop.train.task import ExportForm, FilesMade, Loss
from pitstop.workloads.bev.data.batch import BevBatch, BevSample, collate
from pitstop.workloads.bev.data.checking import check_world
from pitstop.workloads.bev.data.dataset import (
    RANDOM,
    MonoSamples,
    SurroundSamples,
    mono_eval,
    mono_train,
    surround_eval,
    surround_train,
)
from pitstop.workloads.bev.data.packing import pack_splits
from pitstop.workloads.bev.data.pon import PON_CLASSES
from pitstop.workloads.bev.data.raster import Grid
from pitstop.workloads.bev.data.targets import MAP_CLASSES, VEHICLE
from pitstop.workloads.bev.exporting import bev_export_form
from pitstop.workloads.bev.losses import Term, judge, mono_terms, surround_terms
from pitstop.workloads.bev.metrics import CellOverlap, metric_names
from pitstop.workloads.bev.model.lift_splat import LssNet, settings_of
from pitstop.workloads.bev.model.published import load_published
from pitstop.workloads.bev.pictures import draw_ground, write_cells
from pitstop.workloads.bev.plain_pictures import PlainPictures, find_pictures, segment_pictures

BevSamples = MonoSamples | SurroundSamples

_TARGETS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"map": MAP_CLASSES, "vehicle": (VEHICLE,), "map+vehicle": (*MAP_CLASSES, VEHICLE)}
)
_RAREST = 1e-4
"""Frequency that a class without any cell is taken to have, so that its weight stays finite; as
much is missing to 1 where a class is everywhere."""


class BevTask:
    """Lift, splat and segment, on key frames of nuScenes.

    Raises:
        ConfigError: Where settings ask for what is not built or cannot be had.
    """

    name = "bev"
    loss_is_separable = True

    def __init__(
        self,
        *,
        data: MonoData | SurroundData,
        model: LssModel,
        loss: LossSection,
        batch_size: int,
        seed: int,
    ) -> None:
        self.nominal_count = float(batch_size)
        self.classes: tuple[str, ...] = (
            PON_CLASSES if isinstance(data, MonoData) else _TARGETS[data.targets]
        )
        self.grid = _target_grid(data, model)
        known = dict.fromkeys(metric_names(self.classes), True)
        self.higher_is_better: Mapping[str, bool] = MappingProxyType(known)
        self._data = data
        self._model = model
        self._loss = loss
        self._seed = seed
        self._train_samples: BevSamples | None = None
        self._eval_samples: BevSamples | None = None
        self._frequencies: tuple[float, ...] | None = None
        self._terms: dict[torch.device, list[Term]] = {}
        self._notes: tuple[str, ...] = ()
        self._pictures: PlainPictures | None = None

    def start_notes(self) -> tuple[str, ...]:
        """Say what the network starts from, where that is a file of weights."""
        return self._notes

    def build_model(self) -> LssNet:
        """Make the network, with weights of the backbone where a folder is named.

        Raises:
            ConfigError: Where settings do not fit together.
            DataError: Where the weights or the training data cannot be used.
        """
        return self._build(self._model)

    def build_teacher(self, config_yaml: str) -> LssNet:
        """Make the network that a checkpoint's own configuration describes.

        Raises:
            ConfigError: Where that is no network for bird's-eye views, or one of other classes.
        """
        config = config_from(yaml.safe_load(config_yaml)).config
        section = _require_lss(config.model)
        if section.kind != self._model.kind:
            raise ConfigError(
                f"the teacher is a {section.kind} and this model a {self._model.kind}: they look "
                "at other images and find other classes"
            )
        return self._build(section)

    def train_samples(self) -> BevSamples:
        """Look at the training split; once, since frequencies are counted in it, too."""
        if self._train_samples is None:
            if isinstance(self._data, MonoData):
                self._train_samples = mono_train(self._data, seed=self._seed, grid=self.grid)
            else:
                self._train_samples = surround_train(
                    self._data, seed=self._seed, grid=self.grid, classes=self.classes
                )
        return self._train_samples

    def eval_samples(self) -> BevSamples:
        """Look at the evaluation split."""
        if self._eval_samples is None:
            if isinstance(self._data, MonoData):
                self._eval_samples = mono_eval(self._data, grid=self.grid)
            else:
                self._eval_samples = surround_eval(self._data, grid=self.grid, classes=self.classes)
        return self._eval_samples

    @staticmethod
    def collate(samples: list[BevSample]) -> BevBatch:
        """Put samples side by side."""
        return collate(samples)

    def blank_batch(self, batch_size: int) -> BevBatch:
        """Make black images of one calibration each, for planning."""
        cameras = self._data.cameras if isinstance(self._data, SurroundData) else 1
        height, width = self._data.image_size
        rows, columns = (round((b[1] - b[0]) / b[2]) for b in (self.grid.forward, self.grid.across))
        sample = BevSample(
            images=torch.zeros(cameras, 3, height, width, dtype=torch.uint8),
            intrinsics=torch.eye(3).expand(cameras, 3, 3).clone(),
            cam_to_ego=torch.eye(4).expand(cameras, 4, 4).clone(),
            image_transform=torch.eye(3).expand(cameras, 3, 3).clone(),
            bev_transform=torch.eye(4),
            # Cameras are augmented at random where there are six, and known by number else.
            calibration=torch.tensor(RANDOM if cameras > 1 else 0),
            targets=torch.zeros(len(self.classes), rows, columns, dtype=torch.uint8),
            mask=torch.ones(rows, columns, dtype=torch.uint8),
        )
        return collate([sample] * batch_size)

    def samples_in(self, batch: BevBatch) -> int:
        """Count the samples of a batch."""
        return len(batch.images)

    def to_device(self, batch: BevBatch, device: torch.device) -> BevBatch:
        """Copy a batch as the bytes it is.

        The numbers of calibrations stay on the host: they say which geometry is known already, and
        reading them back from the device would wait for it.
        """
        return replace(on_device(batch, device), calibration=batch.calibration)

    def forward(self, model: nn.Module, batch: BevBatch) -> Tensor:
        """Give the logits of every class and cell, (B, K, h, w)."""
        return model(batch)

    def predict(self, model: nn.Module, batch: BevBatch) -> Tensor:
        """Give the same where nothing is learned, past a network compiled as a whole.

        Its graph is of training, and compiling another for a few batches takes longer than they do.
        """
        return model.forward(batch)

    def loss(self, output: Tensor, batch: BevBatch, step: int) -> Loss:
        """Judge logits."""
        terms = self._loss_terms(output.device)
        return judge(terms, output, batch.targets, batch.mask, step=step)

    def distance(self, output: Tensor, teacher_output: Tensor) -> Tensor:
        """Give the mean distance of probabilities to a teacher's."""
        return (output.float().sigmoid() - teacher_output.float().sigmoid()).abs().mean()

    def metrics(self) -> CellOverlap:
        """Make a fresh collector of overlaps."""
        return CellOverlap(self.classes)

    def blank_metrics(self) -> CellOverlap:
        """Make the same: no data decide about it."""
        return self.metrics()

    def write_output(
        self, output: Tensor, batch: BevBatch, indices: Sequence[int], folder: Path
    ) -> list[Path]:
        """Write what was found, one PNG a sample: bit k of a cell says whether class k is there.

        Raises:
            DataError: Where a file cannot be written.
        """
        del batch
        return write_cells(output, [f"{index:06d}" for index in indices], folder)

    def names_files(self) -> bool:
        """Look at the pictures of `data.pictures`, where it is set.

        Raises:
            DataError: Where they cannot be used.
        """
        if self._data.pictures is None:
            return False
        self._pictures = find_pictures(self._data)
        return True

    def take_sizes(self, tensors: Mapping[str, Tensor]) -> None:
        """Count no classes in training data: weights bring along what would begin by them."""
        del tensors
        self._frequencies = ()

    def infer_files(self, model: nn.Module, folder: Path, device: torch.device) -> FilesMade:
        """Segment the ground before every picture."""
        assert self._pictures is not None, "checked before"
        return segment_pictures(
            self._pictures,
            lambda batch: self.predict(model, self.to_device(batch, device)),
            self._data,
            folder,
            classes=self.classes,
        )

    def draw(
        self, output: Tensor, batch: BevBatch, indices: Sequence[int], folder: Path
    ) -> list[PictureRow]:
        """Write what a camera saw, what was found and what is there.

        Raises:
            DataError: Where a file cannot be written.
        """
        samples = self.eval_samples()
        return draw_ground(
            output,
            batch,
            classes=self.classes,
            titles=[samples.name_of(index) for index in indices],
            folder=folder,
            frame="ego" if isinstance(self._data, SurroundData) else "camera",
        )

    def check_data(self) -> DataCheck:
        """Read the tables of the version, its maps and every image of its key frames."""
        return check_world(self._root(), self._data.version)

    def pack_data(self, output: Path | None, *, frames: Frames) -> PackSummary:
        """Put the two splits into one file, beside the dataset unless said.

        Decoded images are as training and evaluation read them, at each size that occurs.

        Raises:
            DataError: Where something is missing or cannot be read; nothing is left behind.
        """
        root = self._root()
        both = (self.train_samples(), self.eval_samples())
        chosen = np.unique(np.concatenate([samples.frames.chosen for samples in both]))
        return pack_splits(
            root,
            beside(root) if output is None else output,
            (self._data.version, both[0].frames.index, chosen),
            decoded_for=both if frames == "decoded" else None,
            with_lidar=isinstance(self._data, MonoData) and self._data.labels is None,
        )

    def export_form(self, model: nn.Module) -> ExportForm:
        """Give the logits of every cell from images and how their cameras stand."""
        assert isinstance(model, LssNet)
        frame = "ego" if isinstance(self._data, SurroundData) else "camera"
        return bev_export_form(model, self.blank_batch(1), frame=frame)

    def parts(self, model: nn.Module) -> Mapping[str, nn.Module]:
        """Name backbone, neck, depth net, splat, encoder and head."""
        assert isinstance(model, LssNet)
        return model.named_parts()

    def regions(self, model: nn.Module) -> Sequence[nn.Module]:
        """List the blocks of the backbone, and the layers behind it."""
        assert isinstance(model, LssNet)
        return model.regions()

    def _root(self) -> Path:
        if self._data.root is None:
            raise ConfigError("data.root is not set; name the folder of a nuScenes set")
        return self._data.root

    def _build(self, section: LssModel) -> LssNet:
        settings = settings_of(
            section,
            self._data.image_size,
            classes=len(self.classes),
            # A network that is built without a run, such as to plan its memory, has no data.
            priors=() if self._data.root is None else self._class_frequencies(),
        )
        if isinstance(self._data, SurroundData):
            settings = replace(settings, target=(self.grid.forward, self.grid.across))
        path = section.weights
        if path is None or not path.is_file():
            if section.weights_key is not None:
                raise ConfigError(f"model.weights_key has no effect: {path} is no file")
            return LssNet(settings, kernels=section.kernels)
        model = LssNet(replace(settings, weights=None), kernels=section.kernels)
        self._notes = load_published(model, path, key=section.weights_key)
        return model

    def _loss_terms(self, device: torch.device) -> list[Term]:
        if device not in self._terms:
            if isinstance(self._loss, MonoLoss):
                terms = mono_terms(self._loss, self._class_frequencies(), device)
            else:
                assert isinstance(self._loss, SurroundLoss)
                terms = surround_terms(self._loss)
            self._terms[device] = terms
        return self._terms[device]

    def _class_frequencies(self) -> tuple[float, ...]:
        """Count how frequent each class is where one camera looks; six cameras start without."""
        if not isinstance(self._data, MonoData):
            return ()
        if self._frequencies == ():
            return ()
        if self._data.root is None:  # planned without data: any frequency has the same shape
            return (0.5,) * len(self.classes)
        if self._frequencies is None:
            self._frequencies = class_frequencies(
                self.train_samples(), most=self._data.frequencies_from
            )
        return self._frequencies


def _target_grid(data: MonoData | SurroundData, model: LssModel) -> Grid:
    """Six cameras' targets are set by the data; one camera's head halves the steps of its grid."""
    if isinstance(data, SurroundData):
        return Grid(forward=data.target_forward, across=data.target_across)
    bounds = ((start, stop, step / 2) for start, stop, step in (model.forward_bound, model.x_bound))
    forward, across = bounds
    return Grid(forward=forward, across=across)


def class_frequencies(samples: BevSamples, *, most: int) -> tuple[float, ...]:
    """Count the share of each class among seen cells, in samples spread over a set."""
    count = min(most, len(samples))
    chosen = [place * len(samples) // count for place in range(count)]
    counts = [_seen_cells(samples.sample(0, index)) for index in chosen]
    classes, seen = (torch.stack(part).sum(dim=0) for part in zip(*counts, strict=True))
    rates = classes / seen.clamp_min(1)
    return tuple(rates.clamp(_RAREST, 1 - _RAREST).tolist())


def _seen_cells(sample: BevSample) -> tuple[Tensor, Tensor]:
    """Count the cells of each class among those seen, and those seen."""
    classes = (sample.targets * sample.mask).sum(dim=(1, 2), dtype=torch.float64)
    return classes, sample.mask.sum(dtype=torch.float64)


def build_bev(config: RunConfig) -> BevTask:
    """Make the task of a checked configuration.

    Raises:
        ConfigError: Where settings ask for what is not built.
    """
    assert isinstance(config.data, (MonoData, SurroundData))
    return BevTask(
        data=config.data,
        model=_require_lss(config.model),
        loss=config.loss,
        batch_size=config.train.batch_size,
        seed=config.run.seed,
    )


def _require_lss(section: ModelSection) -> LssModel:
    if not isinstance(section, LssModel):
        raise ConfigError(f"a model of kind {section.kind} does not segment the ground")
    return section
