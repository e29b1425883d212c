"""What a trained model did with the evaluation data: how good it was, or what it made."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPass:
    """One pass of a trained model over the evaluation data of a workload."""

    name: str
    """Of the run whose configuration was used."""
    workload: str
    checkpoint: str
    """Folder or file the weights came from."""
    step: int | None
    """Optimizer steps behind the weights; None where the file does not say."""
    averaged: bool
    """Whether the weights are the averaged ones, which a checkpoint has under `train.ema`."""
    samples: int
    """Over all ranks, each once."""
    wall_s: float
    """From the first batch asked for to the end; reading the weights is not in it."""
    samples_per_s: float
    """On the wall clock, over all ranks."""
    ranks: int
    device: str
    precision: str
    peak_device_bytes: int | None = None
    """Most memory the device's allocator gave out at once, on the first rank; None where there is
    no device to ask."""
    notes: tuple[str, ...] = ()
    """What a reader must know, such as checkpoints that were passed over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRecord(ModelPass):
    """How good a trained model is."""

    metrics: Mapping[str, float | None]
    """By name; None where the value is not a finite number, which JSON cannot hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceRecord(ModelPass):
    """What a trained model made."""

    output: str
    """Folder the files are in."""
    files: int
    """Files written, over all ranks."""
