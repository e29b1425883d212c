"""Every knob that all workloads share, and the root they hang on.

A section is a frozen pydantic model; the text under a field is its documentation, from which
docs/configuration.md is generated. `data`, `model` and `loss` belong to the workload, which
`model.kind` decides: their sections are in workloads/. Code elsewhere takes the
section it needs, never the root. Which settings go together is judged in rules.py.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny

from pitstop.config.quantities import (
    BelowOne,
    Bytes,
    Count,
    FilePath,
    Multipliers,
    Name,
    Natural,
    NonNegative,
    Positive,
    Recompute,
    Share,
    SizeByEpoch,
    Word,
    Workers,
)


class Section(BaseModel):
    """Base of every section: frozen, and a key nobody reads is an error."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=()
    )


class RunSection(Section):
    """What the run is called, where it writes, and how repeatable it is."""

    name: Name = "run"
    """Name of the run; its files go to the folder of this name under `run.work_dir`."""

    work_dir: FilePath = Path("runs")
    """Folder under which every run makes its own folder."""

    seed: Natural = Field(default=0, le=2**32 - 1)
    """Start of every random number: weights, shuffling, crops."""

    deterministic: bool = False
    """Use only kernels that give the same bits every time; slower, and some parts have none. Three
    ranks or more also add up gradients in one order before and after a restart."""

    rank_timeout_s: Annotated[float, Field(ge=1, le=604_800)] | None = None
    """Seconds that a rank waits for the others before it ends with an error, and a launcher may
    start all of them again; more than what one of them does alone, such as reading a checkpoint.
    Null: torch's own limit (30 minutes with gloo, 10 with NCCL)."""


class DataSection(Section):
    """Where samples come from; each workload adds its own settings."""

    root: FilePath | None = None
    """Folder of the dataset; null for what needs no data, such as planning memory."""

    split: Word = "train"
    """Part of the dataset to train on."""

    eval_split: Word = "test"
    """Part of the dataset to evaluate on."""


class LoaderSection(Section):
    """How samples travel from disk to the device."""

    workers: Workers = "auto"
    """Worker processes for training on this host, shared over its ranks: `auto`, a fraction of the
    usable cores (a number with a point), or a count. 0 loads in the training process itself."""

    prefetch: Count = 2
    """Batches each worker prepares ahead; where the loader is tuned, at first."""

    prefetch_bytes: Bytes | None = None
    """Host memory, in bytes, that prepared training batches of all workers and ranks of this host
    may hold: the size of a batch is estimated, and workers prepare as many as fit, instead of
    `loader.prefetch` each. An evaluation may hold as much again while it runs, unless
    `loader.eval_prefetch` is set. Null for a count of batches."""

    eval_workers: Workers | None = None
    """Worker processes for evaluation, written like `loader.workers`; null for the same."""

    eval_prefetch: Count | None = None
    """Batches each evaluation worker prepares ahead; null for `loader.prefetch`."""

    pin: bool = True
    """Put batches into page-locked memory, so that copies to the device overlap with computing."""

    persistent: bool = True
    """Keep workers alive between epochs instead of starting them anew; they then read on into the
    next epoch."""

    drop_last: bool = True
    """Leave out the last batch of an epoch when it is not full."""

    start_method: Literal["auto", "fork", "spawn", "forkserver"] = "auto"
    """How worker processes start; `spawn` is what Windows and macOS do."""

    corrupt: Literal["raise", "skip"] = "raise"
    """What to do with a training sample that cannot be read: stop, or take the next one, count it
    and name it at the end. An evaluation always stops."""

    tune: Literal["auto", "off"] = "off"
    """`off` keeps the number of workers that `loader.workers` gives. `auto` starts with one worker,
    measures the wait for data on the first steps of the run, and goes on with the fewest workers
    and batches ahead that keep it under 2 %; the batches and their order stay the same."""


class CacheSection(Section):
    """Decoded training samples kept in memory, once per host for all its workers and ranks."""

    budget: Bytes = 0
    """Most host memory, in bytes, the cache may hold; 0 for no cache. Evaluation has none."""

    policy: Literal["keep", "lru", "epoch"] = "keep"
    """What happens when the cache is full: `keep` what is there, drop the least recently used
    (`lru`, for samples of a sequence that come one after the other), or drop what the known order
    of this epoch and the next needs last (`epoch`)."""


class ModelSection(Section):
    """What is trained; `kind` decides the workload, and each workload adds its own settings."""

    kind: Word
    """The model, and thereby the workload whose `data`, `model` and `loss` settings apply."""

    kernels: Literal["auto", "reference", "fused"] = "auto"
    """Plain PyTorch (`reference`), the fast kernels (`fused`), or the fast ones where they run."""

    weights: FilePath | None = None
    """File of weights to start from; null for random ones."""

    weights_key: Word | None = None
    """Under which name of that file the weights are, such as `params`; null for the averaged ones
    (`params_ema`, `model_ema`) where there are any, else for `params`, `state_dict` or `model`."""


class ScalerSection(Section):
    """The dynamic loss scale of fp16."""

    start: Positive = 65536.0
    """First scale. Gradients above 65504 / scale overflow, and the scale then shrinks."""

    growth: float = Field(default=2.0, gt=1)
    """Factor by which the scale grows after `growth_every_steps` steps without overflow."""

    backoff: float = Field(default=0.5, gt=0, lt=1)
    """Factor by which the scale shrinks after an overflow."""

    growth_every_steps: Count = 2000
    """Optimizer steps without overflow before the scale grows."""


class CompileSection(Section):
    """torch.compile."""

    scope: Literal["off", "regions", "whole"] = "off"
    """Compile nothing, each repeated block once, or the whole model."""

    mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = (
        "default"
    )
    """torch.compile's own mode; `reduce-overhead` and `max-autotune` use CUDA graphs, which need
    shapes that do not change."""


class ClipSection(Section):
    """Clipping of the gradient norm, after unscaling."""

    kind: Literal["fixed", "adaptive", "none"] = "fixed"
    """Clip to `norm`, to a limit that follows recent norms, or not at all."""

    norm: Positive = 1.0
    """Largest gradient norm; under `adaptive` it holds until `window` norms are known."""

    quantile: Share = 0.7
    """Under `adaptive`: the quantile of recent norms the limit follows."""

    window: Count = 10
    """Under `adaptive`: number of optimizer steps whose norms are remembered."""

    factor: Positive = 1.15
    """Under `adaptive`: the limit is the quantile times this."""

    min_norm: Positive = 0.5
    """Under `adaptive`: the limit never goes below this."""

    max_norm: Positive = 3.0
    """Under `adaptive`: the limit never goes above this."""


class DistillSection(Section):
    """Learning from a larger, trained model."""

    teacher: FilePath | None = None
    """Checkpoint of the teacher; null for no distillation."""

    weight: Positive = 1.0
    """Weight of the distance to the teacher's output in the loss."""


class TrainSection(Section):
    """One optimizer step, and how many of them."""

    batch_size: Count = 1
    """Samples in one micro-batch on one device."""

    accumulate: Count = 1
    """Micro-batches whose gradients make one optimizer step."""

    steps: Count | None = None
    """Length of the run in optimizer steps; set this or `train.epochs`."""

    epochs: Count | None = None
    """Length of the run in passes over the training data; set this or `train.steps`."""

    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    """Arithmetic of forward and backward; weights and optimizer stay fp32. fp16 needs a scaler."""

    scaler: ScalerSection = ScalerSection()
    """Loss scale under fp16."""

    recompute: Recompute = "none"
    """Activations computed again in backward instead of kept: of all blocks (`full`), of their
    `attention` or `ffn` halves, of the stages listed, where it saves most (`selective`), or just so
    much that activations take at most a size such as `20GiB`."""

    compile: CompileSection = CompileSection()
    """torch.compile."""

    channels_last: bool = False
    """Lay out weights and pictures of two-dimensional convolutions with all channels of a pixel
    together, which tensor cores prefer."""

    shard: Literal["none", "full", "hybrid"] = "none"
    """Divide weights, gradients and the optimizer's state between ranks (FSDP2): between all of
    them (`full`), or between those of one host, with a copy on each host (`hybrid`)."""

    shard_ranks: Count | None = None
    """Ranks that hold one copy of the model together under `hybrid`; null for those of one
    host."""

    sync_norm: bool = False
    """Let batch norm take mean and deviation of the samples of all ranks, not of each rank's own;
    micro-batches that are accumulated stay apart."""

    clip: ClipSection = ClipSection()
    """Gradient clipping."""

    on_nan: Literal["skip", "rollback", "stop"] = "stop"
    """When the loss or a gradient is not finite: leave the step out, go back to the last
    checkpoint, or stop."""

    ema: BelowOne | None = None
    """Decay per optimizer step of the averaged copy of the weights used for evaluation, such as
    0.999; null for no copy."""

    crop_schedule: SizeByEpoch = ()
    """Crop size in pixels from each given epoch on, such as {0: 128, 40: 256}."""

    distill: DistillSection = DistillSection()
    """Learning from a teacher."""


class OptimizerSection(Section):
    """The optimizer and its learning rate."""

    kind: Literal["adamw", "adamw8bit", "adamw_bf16", "adam", "sgd"] = "adamw"
    """The rule of the update; `adamw8bit` and `adamw_bf16` keep their state in fewer bits."""

    lr: Positive = 1e-4
    """Peak learning rate."""

    betas: tuple[BelowOne, BelowOne] = (0.9, 0.999)
    """Decay rates of Adam's two averages."""

    eps: Positive = 1e-8
    """Number that keeps Adam from dividing by zero."""

    weight_decay: NonNegative = 0.01
    """Weight decay; decoupled from the gradient in the adamw kinds."""

    momentum: BelowOne = 0.9
    """Momentum of sgd."""

    nesterov: bool = False
    """Nesterov's form of sgd's momentum."""

    fused: Literal["auto", "on", "off"] = "auto"
    """One kernel for the whole update; `auto` uses it where torch has it."""

    lr_scaling: Literal["none", "linear", "sqrt"] = "none"
    """Multiply `lr` by r or by the square root of r, where r is the effective batch (batch_size x
    accumulate x devices) over the batch `lr` was chosen for."""

    reference_batch: Count | None = None
    """Effective batch, in samples, that `lr` was chosen for; null for one micro-batch on each
    device, so that r is `train.accumulate`."""

    lr_multipliers: Multipliers = ()
    """Factors on `lr` for parameters whose name contains a given part, such as {spynet: 0.125}."""


class ScheduleSection(Section):
    """The learning rate over the run, counted in optimizer steps."""

    kind: Literal["cosine", "poly", "step", "constant"] = "cosine"
    """How the rate falls after warm-up."""

    warmup_steps: Natural = 0
    """Optimizer steps over which the rate rises linearly to its peak."""

    warmup_start: Share = 0.001
    """Rate at the first step of warm-up, as a share of the peak."""

    end_factor: Share = 0.0
    """Rate at the end of `cosine` or `poly`, as a share of the peak."""

    power: Positive = 1.0
    """Exponent of `poly`; 1 is a straight line."""

    milestones: tuple[Count, ...] = ()
    """Optimizer steps at which `step` lowers the rate."""

    gamma: float = Field(default=0.1, gt=0, lt=1)
    """Factor by which `step` lowers the rate."""


class LossTerm(Section):
    """One term of the loss."""

    weight: NonNegative = 1.0
    """Weight of the term in the sum; 0 leaves it out."""

    every_steps: Count = 1
    """Compute the term every so many optimizer steps."""


class LossSection(Section):
    """The terms of the loss; each workload has its own."""


class EvalSection(Section):
    """Evaluation during and after training."""

    every_steps: Count | None = None
    """Optimizer steps between evaluations; null for one at the end."""

    batch_size: Count = 1
    """Samples in one evaluation batch on one device."""

    tile: Count | None = None
    """Evaluate images in square tiles of this many pixels; null for whole images."""

    tile_overlap: Natural = 32
    """Pixels by which neighbouring tiles overlap."""


class CheckpointSection(Section):
    """What is saved, and how often."""

    every_steps: Count | None = 1000
    """Optimizer steps between checkpoints; null for one at the end."""

    keep_last: Count = 3
    """Number of latest checkpoints to keep."""

    best_of: Word | None = None
    """Metric whose best checkpoint is kept as well, such as psnr; null for none."""

    dir: FilePath | None = None
    """Folder under which each run's checkpoints go, in a folder of the run's name, where records
    stay on the host that writes them: all hosts must see it. Null: beside the records."""


class LogSection(Section):
    """What is written down during training, and how often; in optimizer steps."""

    every_steps: Count = 50
    """Steps between records of loss, rate and time."""

    norm_every_steps: Count | None = None
    """Steps between records of the gradient norm; null for none. Clipping does not depend on it."""

    progress_every_steps: Count = 10
    """Steps between updates of the progress bar."""

    memory_every_steps: Count | None = 100
    """Steps between readings of host and device memory; null for none."""

    tensorboard: bool = False
    """Also write TensorBoard files."""


class TargetsSection(Section):
    """What the run should reach; the closing summary says what it did. null: not judged."""

    data_wait_ms: Positive | None = None
    """Most milliseconds that a step waits for data, in the median."""

    gpu_busy: Share | None = None
    """Least share of the time in which the GPU computes, as its driver says."""

    hit_rate: Share | None = None
    """Least share of lookups that the cache answers."""

    host_memory: Share | None = None
    """Most of the host's memory in use at any reading, by everybody."""

    samples_per_s: Positive | None = None
    """Least throughput of a rank on the wall clock, evaluation and checkpoints included."""


class RunConfig(Section):
    """A whole run. `data`, `model` and `loss` are the classes of the workload."""

    run: RunSection = RunSection()
    data: SerializeAsAny[DataSection]
    loader: LoaderSection = LoaderSection()
    cache: CacheSection = CacheSection()
    model: SerializeAsAny[ModelSection]
    train: TrainSection = TrainSection()
    optimizer: OptimizerSection = OptimizerSection()
    schedule: ScheduleSection = ScheduleSection()
    loss: SerializeAsAny[LossSection]
    eval: EvalSection = EvalSection()
    checkpoint: CheckpointSection = CheckpointSection()
    log: LogSection = LogSection()
    targets: TargetsSection = TargetsSection()
