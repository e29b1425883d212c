"""Deblurring as the engine sees it: clips in, restored clips out, judged against sharp ones."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

import torch
import yaml
from torch import Tensor, nn

from pitstop.config.load import config_from
from pitstop.config.sections import EvalSection, ModelSection, RunConfig, TrainSection
from pitstop.config.workloads.deblur import (
    DeblurData,
    DeblurLoss,
    FusionSection,
    SpikeEncoderSection,
    VrtModel,
)
from pitstop.data.check import DataCheck
from pitstop.data.loader.prefetch import on_device
from pitstop.data.pack import Frames, PackSummary, beside
from pitstop.data.sampling.grouped import SequenceBatches
from pitstop.data.sampling.samplers import Batches, Deal, train_order
from pitstop.errors import ConfigError, DataError
from pitstop.kernels import Kernels
from pitstop.records.pictures import PictureRow
from pitstop.train.task import ExportForm, FilesMade, Loss
from pitstop.workloads.deblur.data.dataset import (
    ClipBatch,
    ClipSample,
    ClipSamples,
    dataset_root,
    eval_clips,
    train_clips,
)
from pitstop.workloads.deblur.data.inputs import COLOURS, Inputs, eval_inputs, train_inputs
from pitstop.workloads.deblur.data.packing import check_clips, pack_clips
from pitstop.workloads.deblur.data.planes import spike_eval_samples, spike_train_samples
from pitstop.workloads.deblur.data.voxels import Voxels, join_planes
from pitstop.workloads.deblur.losses import build_terms, charbonnier, judge, loss_parts
from pitstop.workloads.deblur.metrics import LEVELS, LPIPS, METRICS, FrameQuality
from pitstop.workloads.deblur.model.blocks import AttentionBlock
from pitstop.workloads.deblur.model.lpips import build_lpips
from pitstop.workloads.deblur.model.spike_branch import AttentionShape, SpikeShape
from pitstop.workloads.deblur.model.vrt import VRT, VRTSettings, load_checkpoint
from pitstop.workloads.deblur.model.vrt_spike import VRTSpike, load_spike_checkpoint
from pitstop.workloads.deblur.outputs import write_frames
from pitstop.workloads.deblur.pictures import draw_segments
from pitstop.workloads.deblur.prediction import WholeFrames
from pitstop.workloads.deblur.restore_folder import FrameFolder, check_folder, restore_folder

_DISTILL_EPS: Final = 1e-6

# What GoPro has, for a batch that is made without looking at data.
_WHOLE_FRAME: Final = (720, 1280)
_PLANES: Final = 56


class DeblurTask:
    """VRT on clips of blurred and sharp frames, with or without the spikes beside them.

    Raises:
        ConfigError: Where settings ask for what is not built or cannot be had.
    """

    name = "deblur"
    loss_is_separable = True

    def __init__(
        self,
        *,
        data: DeblurData,
        model: VrtModel,
        loss: DeblurLoss,
        train: TrainSection,
        evaluation: EvalSection,
        seed: int,
    ) -> None:
        _require_vrt(model)
        self.nominal_count = float(train.batch_size)
        self._data = data
        self._model = model
        self._crop_schedule = train.crop_schedule
        self._seed = seed
        self._terms = build_terms(loss, precision=train.precision)
        self._lpips = build_lpips(data.lpips)
        known = dict.fromkeys(METRICS, True) | ({} if self._lpips is None else {LPIPS: False})
        self.higher_is_better: Mapping[str, bool] = MappingProxyType(known)
        self._voxels = voxel_settings(data)
        self._whole_frames = WholeFrames(
            self.forward,
            self.to_device,
            tiles=data.tiles,
            evaluation=evaluation,
            upscale=model.upscale,
        )
        self._eval_samples: ClipSamples | None = None
        self._folder: FrameFolder | None = None
        self._notes: tuple[str, ...] = ()

    def start_notes(self) -> tuple[str, ...]:
        """Say which weights of a file the network starts from, and what it does not have."""
        return self._notes

    def build_model(self) -> VRT:
        """Make the network, with weights from a file where one is named.

        Raises:
            ConfigError: Where settings do not fit together, or the file does not fit the network.
        """
        model = build_network(self._model, self._data, self._model.kernels)
        if self._model.weights is not None:
            if isinstance(model, VRTSpike):
                load = partial(load_spike_checkpoint, model)
            else:
                load = partial(load_checkpoint, model)
            self._notes = load(self._model.weights, key=self._model.weights_key)
        elif self._model.start == "identity":
            model.start_from_input()
        return model

    def build_teacher(self, config_yaml: str) -> VRT:
        """Make the network that a checkpoint's own configuration describes.

        Raises:
            ConfigError: Where that is no network for deblurring, or sees spikes that this run does
                not have or turns into other channels.
        """
        config = config_from(yaml.safe_load(config_yaml)).config
        section = _require_vrt(config.model)
        assert isinstance(config.data, DeblurData)
        if section.kind == "vrt_spike":
            if not self._sees_spikes:
                raise ConfigError(
                    "the teacher sees spikes (its model.kind is vrt_spike), and this run has none; "
                    "set model.kind to vrt_spike, or take another teacher"
                )
            if voxel_settings(config.data) != self._voxels:
                raise ConfigError(
                    "the teacher was trained on other channels of spikes; set data.voxels, "
                    "data.voxel_bins, data.tfp_reach and data.log1p as it had them"
                )
        return build_network(section, config.data, self._model.kernels)

    def train_samples(self) -> ClipSamples:
        """Look at the training split."""
        if self._sees_spikes:
            return spike_train_samples(self._data, self._crop_schedule, seed=self._seed)
        return train_clips(
            self._data,
            self._crop_schedule,
            seed=self._seed,
            with_spikes=False,
            inputs=train_inputs(self._data, self._model),
        )

    def train_batches(self, samples: ClipSamples, deal: Deal) -> Batches:
        """Shuffle samples, or walk through clips side by side (`data.order: sequence`)."""
        if self._data.order == "shuffle":
            return train_order(None, samples, deal)
        return SequenceBatches(len(samples), sequences=samples.sequences, **asdict(deal))

    def eval_samples(self) -> ClipSamples:
        """Look at the evaluation split; once, since metrics count by its clips as well."""
        if self._eval_samples is None:
            self._eval_samples = (
                spike_eval_samples(self._data)
                if self._sees_spikes
                else eval_clips(self._data, with_spikes=False, inputs=self._eval_inputs)
            )
        return self._eval_samples

    @staticmethod
    def collate(samples: list[ClipSample]) -> ClipBatch:
        """Put samples side by side; it travels to workers, and feature networks must not.

        Raises:
            DataError: Where their frames differ in size.
        """
        sizes = {tuple(sample.blur.shape[-2:]) for sample in samples}
        if len(sizes) > 1:
            listed = " and ".join(f"{height}x{width}" for height, width in sorted(sizes)[:2])
            raise DataError(
                f"frames of {listed} do not go into one batch; set data.crop (in evaluation "
                "data.eval_crop), or a batch size of 1"
            )
        spikes = [sample.spikes for sample in samples if sample.spikes is not None]
        return ClipBatch(
            blur=torch.stack([sample.blur for sample in samples]),
            sharp=torch.stack([sample.sharp for sample in samples]),
            spikes=join_planes(spikes) if spikes else None,
            clip=torch.tensor([sample.clip for sample in samples]),
            fresh=torch.stack([sample.fresh for sample in samples]),
        )

    def blank_batch(self, batch_size: int) -> ClipBatch:
        """Make black clips of the largest crop, for planning."""
        side = max((size for _, size in self._crop_schedule), default=self._data.crop)
        return self._blank_clips(batch_size, side)

    def blank_eval_batch(self, batch_size: int) -> ClipBatch:
        """Make black clips of whole frames, or of the crop that evaluations are of."""
        return self._blank_clips(batch_size, self._data.eval_crop)

    def _blank_clips(self, batch_size: int, side: int | None) -> ClipBatch:
        data = self._data
        height, width = (side, side) if side is not None else _WHOLE_FRAME
        inputs = self._eval_inputs
        sharp = torch.zeros(batch_size, data.clip_len, COLOURS, height, width, dtype=torch.uint8)
        size = (height // inputs.scale, width // inputs.scale)
        blur = torch.zeros(batch_size, data.clip_len, inputs.channels, *size, dtype=inputs.dtype)
        spikes = None
        if self._sees_spikes:
            channels = data.voxel_bins if self._voxels.counted else _PLANES
            scale = _WHOLE_FRAME[0] // data.spike_height
            size = (height // scale, width // scale)
            spikes = torch.zeros(batch_size, data.clip_len, channels, *size, dtype=torch.uint8)
        return ClipBatch(
            blur=blur,
            sharp=sharp,
            spikes=spikes,
            clip=torch.zeros(batch_size, dtype=torch.int64),
            fresh=torch.ones(batch_size, data.clip_len, dtype=torch.bool),
        )

    def samples_in(self, batch: ClipBatch) -> int:
        """Count the samples of a batch."""
        return len(batch.blur)

    def to_device(self, batch: ClipBatch, device: torch.device) -> ClipBatch:
        """Copy a batch as the bytes it is; colours become numbers on the device."""
        return on_device(batch, device)

    def forward(self, model: nn.Module, batch: ClipBatch) -> Tensor:
        """Restore the clips of a batch: (B, D, 3, H, W), colours about 0 to 1."""
        if model.training:
            # What an evaluation recorded would keep memory that training may need.
            self._whole_frames.forget()
        colours = _colours(batch.blur)
        if not _uses_spikes(model):
            return model(colours)
        assert batch.spikes is not None, "samples of this task have spikes"
        height, width = colours.shape[-2:]
        return model(colours, self._voxels(batch.spikes, (height, width)))

    def predict(self, model: nn.Module, batch: ClipBatch) -> Tensor:
        """Restore whole frames, in tiles where the configuration asks for them."""
        return self._whole_frames(model, batch)

    def loss(self, output: Tensor, batch: ClipBatch, step: int) -> Loss:
        """Compare restored with sharp frames, as a sum over samples."""
        return judge(self._terms, output, _colours(batch.sharp), step=step)

    def loss_parts(self) -> Mapping[str, nn.Module]:
        """Name the pixel loss and the perceptual loss."""
        return loss_parts(self._terms)

    def distance(self, output: Tensor, teacher_output: Tensor) -> Tensor:
        """Give the mean distance to a teacher's frames, by the measure of the pixel loss."""
        return charbonnier(output, teacher_output, eps=_DISTILL_EPS).mean()

    def metrics(self) -> FrameQuality:
        """Make a fresh collector of quality over the evaluation clips."""
        return FrameQuality(len(self.eval_samples().index.clips), self._lpips)

    def blank_metrics(self) -> FrameQuality:
        """Make one of a single clip; others add a row of sums each."""
        return FrameQuality(1, self._lpips)

    def write_output(
        self, output: Tensor, batch: ClipBatch, indices: Sequence[int], folder: Path
    ) -> list[Path]:
        """Write restored frames as PNG files, each frame of the split once."""
        del batch
        return write_frames(output, self.eval_samples(), indices, folder)

    def draw(
        self, output: Tensor, batch: ClipBatch, indices: Sequence[int], folder: Path
    ) -> list[PictureRow]:
        """Show the middle frame of each segment: blurry, restored, sharp, and its spikes."""
        return draw_segments(output, batch, self.eval_samples(), indices=indices, folder=folder)

    def names_files(self) -> bool:
        """Say whether `data.frames` is to be restored, and check all of it."""
        if self._data.frames is None:
            return False
        self._folder = check_folder(self._data, with_spikes=self._sees_spikes)
        return True

    def infer_files(self, model: nn.Module, folder: Path, device: torch.device) -> FilesMade:
        """Restore `data.frames`, segment by segment; the model says where it runs."""
        del device
        assert self._folder is not None, "checked before"
        # A folder holds spikes, whatever the samples of the dataset are made of.
        self._voxels = replace(self._voxels, counted=False)
        written = restore_folder(
            self._folder,
            lambda batch: self._whole_frames(
                model, replace(batch, blur=self._eval_inputs.with_map(batch.blur))
            ),
            folder,
            clip_len=self._data.clip_len,
            overlap=self._data.tiles.frame_overlap,
            border=self._data.tiles.border,
        )
        return FilesMade(
            samples=len(self._folder.frames), files=written, notes=self._whole_frames.notes
        )

    def check_data(self) -> DataCheck:
        """Read every frame of the two splits, and their spikes where there are any."""
        return check_clips(dataset_root(self._data), self._data)

    def pack_data(self, output: Path | None, *, frames: Frames) -> PackSummary:
        """Put the two splits into one file, beside the dataset unless said.

        Raises:
            DataError: Where something is missing or cannot be read; nothing is left behind.
        """
        root = dataset_root(self._data)
        target = beside(root) if output is None else output
        return pack_clips(root, target, frames=frames, section=self._data)

    def export_form(self, model: nn.Module) -> ExportForm:
        """Give restored frames from colours between 0 and 1, and the channels of their spikes."""
        batch = self.blank_batch(1)
        draw = torch.Generator().manual_seed(0)
        inputs = {"colours": torch.rand(batch.blur.shape, generator=draw)}
        if batch.spikes is not None:
            height, width = batch.blur.shape[-2:]
            shape = self._voxels(batch.spikes, (height, width)).shape
            inputs["voxels"] = torch.rand(shape, generator=draw)
        with torch.no_grad():
            expected = model(*inputs.values())
        return ExportForm(module=model, inputs=inputs, output="restored", expected=expected)

    def parts(self, model: nn.Module) -> Mapping[str, nn.Module]:
        """Name flow estimation, the eight stages, their alignment, and the spike branch."""
        assert isinstance(model, VRT)
        return model.named_parts()

    def regions(self, model: nn.Module) -> Sequence[nn.Module]:
        """List the attention blocks, and the blocks of the spike branch."""
        blocks: list[nn.Module] = [
            module for module in model.modules() if isinstance(module, AttentionBlock)
        ]
        return blocks + model.branch_blocks() if isinstance(model, VRTSpike) else blocks

    @property
    def _eval_inputs(self) -> Inputs:
        return eval_inputs(self._data, self._model)

    @property
    def _sees_spikes(self) -> bool:
        return self._model.kind == "vrt_spike"


def build_deblur(config: RunConfig) -> DeblurTask:
    """Make the task of a checked configuration.

    Raises:
        ConfigError: Where settings ask for what is not built.
    """
    assert isinstance(config.data, DeblurData)
    assert isinstance(config.model, VrtModel)
    assert isinstance(config.loss, DeblurLoss)
    return DeblurTask(
        data=config.data,
        model=config.model,
        loss=config.loss,
        train=config.train,
        evaluation=config.eval,
        seed=config.run.seed,
    )


def network_settings(section: VrtModel) -> VRTSettings:
    """Put the settings of a configuration into the network's own terms."""
    return {
        "window_size": section.window,
        "depths": section.depths,
        "indep_reconsts": section.indep_reconsts,
        "embed_dims": section.embed_dims,
        "num_heads": (section.heads,) * len(section.depths),
        "mlp_ratio": section.mlp_ratio,
        "drop_path_rate": section.drop_path,
        "pa_frames": section.pa_frames,
        "deformable_groups": section.deformable_groups,
        "upscale": section.upscale,
        "noise_map": section.noise_map,
    }


def build_network(section: VrtModel, data: DeblurData, kernels: Kernels) -> VRT:
    """Make the network of a configuration, with random weights.

    Raises:
        ConfigError: Where settings do not fit together.
    """
    settings = network_settings(section)
    if section.kind == "vrt":
        return VRT(kernels=kernels, **settings)
    return VRTSpike(spike=spike_settings(section, data), kernels=kernels, **settings)


def spike_settings(section: VrtModel, data: DeblurData) -> SpikeShape:
    """Put the settings of the spike branch into the network's own terms."""
    branch, fusion = section.spike, section.fusion
    return SpikeShape(
        bins=data.voxel_bins,
        channels=branch.channels,
        temporal_strides=branch.temporal_strides,
        attention=_attention_shape(branch),
        fusion=_attention_shape(fusion),
        kind=fusion.kind,
    )


def _attention_shape(section: SpikeEncoderSection | FusionSection) -> AttentionShape:
    return AttentionShape(
        heads=section.heads,
        dropout=section.dropout,
        mlp_ratio=section.mlp_ratio,
        chunk=section.chunk,
    )


def voxel_settings(data: DeblurData) -> Voxels:
    """Say how spikes become channels."""
    return Voxels(
        kind=data.voxels,
        bins=data.voxel_bins,
        reach=data.tfp_reach,
        log1p=data.log1p,
        counted=data.spikes == "precomputed",
    )


def _require_vrt(section: ModelSection) -> VrtModel:
    if not isinstance(section, VrtModel):
        raise ConfigError(f"a model of kind {section.kind} does not deblur; vrt does")
    return section


def _uses_spikes(model: nn.Module) -> bool:
    """Whether a model, possibly wrapped for several ranks, takes spikes."""
    bare = getattr(model, "module", model)
    return isinstance(bare, VRTSpike) and bare.use_spike


def _colours(levels: Tensor) -> Tensor:
    return levels.float() / LEVELS
