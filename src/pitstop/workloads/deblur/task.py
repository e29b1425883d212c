"""Deblurring as the engine sees it: clips in, restored clips out, judged against sharp ones."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import torch
import yaml
from torch import Tensor, nn

from pitstop.config.deblur import DeblurData, DeblurLoss, VrtModel
from pitstop.config.load import config_from
from pitstop.config.sections import ModelSection, RunConfig, TrainSection
from pitstop.errors import ConfigError, DataError
from pitstop.train.task import Loss
from pitstop.workloads.deblur.blocks import AttentionBlock
from pitstop.workloads.deblur.dataset import (
    ClipBatch,
    ClipSample,
    ClipSamples,
    eval_clips,
    train_clips,
)
from pitstop.workloads.deblur.losses import build_terms, charbonnier, judge
from pitstop.workloads.deblur.metrics import LEVELS, METRICS, FrameQuality
from pitstop.workloads.deblur.model import VRT, VRTSettings, load_checkpoint
from pitstop.workloads.deblur.outputs import write_frames

_DISTILL_EPS: Final = 1e-6


class DeblurTask:
    """VRT on clips of blurred and sharp frames.

    Raises:
        ConfigError: Where settings ask for what is not built.
    """

    name = "deblur"
    loss_is_separable = True
    higher_is_better: Mapping[str, bool] = MappingProxyType(dict.fromkeys(METRICS, True))

    def __init__(
        self,
        *,
        data: DeblurData,
        model: VrtModel,
        loss: DeblurLoss,
        train: TrainSection,
        seed: int,
    ) -> None:
        _require_vrt(model)
        if data.order != "shuffle":
            raise ConfigError(f"data.order {data.order} is not built yet; set it to shuffle")
        self.nominal_count = float(train.batch_size)
        self._data = data
        self._model = model
        self._crop_schedule = train.crop_schedule
        self._seed = seed
        self._terms = build_terms(loss)
        self._eval_samples: ClipSamples | None = None

    def build_model(self) -> VRT:
        """Make the network, with weights from a file where one is named.

        Raises:
            ConfigError: Where settings do not fit together, or the file does not fit the network.
        """
        model = VRT(kernels=self._model.kernels, **network_settings(self._model))
        if self._model.weights is not None:
            load_checkpoint(model, self._model.weights)
        return model

    def build_teacher(self, config_yaml: str) -> VRT:
        """Make the network that a checkpoint's own configuration describes.

        Raises:
            ConfigError: Where that is no network for deblurring.
        """
        section = _require_vrt(config_from(yaml.safe_load(config_yaml)).config.model)
        return VRT(kernels=self._model.kernels, **network_settings(section))

    def train_samples(self) -> ClipSamples:
        """Look at the training split."""
        return train_clips(self._data, self._crop_schedule, seed=self._seed, with_spikes=False)

    def eval_samples(self) -> ClipSamples:
        """Look at the evaluation split; once, since metrics count by its clips as well."""
        if self._eval_samples is None:
            self._eval_samples = eval_clips(self._data, with_spikes=False)
        return self._eval_samples

    def collate(self, samples: list[ClipSample]) -> ClipBatch:
        """Put samples side by side.

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
            spikes=torch.stack(spikes) if spikes else None,
            clip=torch.tensor([sample.clip for sample in samples]),
            fresh=torch.stack([sample.fresh for sample in samples]),
        )

    def samples_in(self, batch: ClipBatch) -> int:
        """Count the samples of a batch."""
        return len(batch.blur)

    def to_device(self, batch: ClipBatch, device: torch.device) -> ClipBatch:
        """Copy a batch as the bytes it is; colours become numbers on the device."""
        spikes = batch.spikes
        return ClipBatch(
            blur=batch.blur.to(device, non_blocking=True),
            sharp=batch.sharp.to(device, non_blocking=True),
            spikes=None if spikes is None else spikes.to(device, non_blocking=True),
            clip=batch.clip.to(device, non_blocking=True),
            fresh=batch.fresh.to(device, non_blocking=True),
        )

    def forward(self, model: nn.Module, batch: ClipBatch) -> Tensor:
        """Restore the clips of a batch: (B, D, 3, H, W), colours about 0 to 1."""
        return model(_colours(batch.blur))

    def loss(self, output: Tensor, batch: ClipBatch, step: int) -> Loss:
        """Compare restored with sharp frames, as a sum over samples."""
        return judge(self._terms, output, _colours(batch.sharp), step=step)

    def distance(self, output: Tensor, teacher_output: Tensor) -> Tensor:
        """Give the mean distance to a teacher's frames, by the measure of the pixel loss."""
        return charbonnier(output, teacher_output, eps=_DISTILL_EPS).mean()

    def metrics(self) -> FrameQuality:
        """Make a fresh collector of PSNR and SSIM over the evaluation clips."""
        return FrameQuality(len(self.eval_samples().index.clips))

    def write_output(
        self, output: Tensor, batch: ClipBatch, indices: Sequence[int], folder: Path
    ) -> list[Path]:
        """Write restored frames as PNG files, each frame of the split once."""
        del batch
        return write_frames(output, self.eval_samples(), indices, folder)

    def parts(self, model: nn.Module) -> Mapping[str, nn.Module]:
        """Name flow estimation, the eight stages and their alignment."""
        assert isinstance(model, VRT)
        return model.named_parts()

    def regions(self, model: nn.Module) -> Sequence[nn.Module]:
        """List the attention blocks."""
        return [module for module in model.modules() if isinstance(module, AttentionBlock)]


def build_deblur(config: RunConfig) -> DeblurTask:
    """Make the task of a checked configuration.

    Raises:
        ConfigError: Where settings ask for what is not built.
    """
    assert isinstance(config.data, DeblurData)
    assert isinstance(config.model, VrtModel)
    assert isinstance(config.loss, DeblurLoss)
    if config.eval.tile is not None:
        raise ConfigError(
            "eval.tile is not built yet; leave it out, or evaluate the centre of frames with "
            "data.eval_crop"
        )
    return DeblurTask(
        data=config.data,
        model=config.model,
        loss=config.loss,
        train=config.train,
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
    }


def _require_vrt(section: ModelSection) -> VrtModel:
    if not isinstance(section, VrtModel):
        raise ConfigError(f"a model of kind {section.kind} does not deblur; vrt does")
    if section.kind != "vrt":
        raise ConfigError(f"model.kind {section.kind} is not built yet; set it to vrt")
    return section


def _colours(levels: Tensor) -> Tensor:
    return levels.float() / LEVELS
