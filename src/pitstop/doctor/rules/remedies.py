"""What to change: settings for runs of our engine, lines of code for everybody else's script."""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from pitstop.doctor.facts import Facts
from pitstop.doctor.rules.fitting import (
    BARS,
    EVALUATION_WORKERS,
    FEW_SHAPES,
    FROZEN_HALF,
    FROZEN_LAYERS,
    HALF_BYTES,
    LARGER_BATCH,
    LARGER_LAUNCHES,
    LOG_FILE,
    LOSS_LOOPS,
    MOVED_OUT,
    PINNED,
    SAME_SHAPES,
    fitted,
)


class Remedy(NamedTuple):
    """The same fix as settings and as code, most effective first."""

    settings: tuple[str, ...]
    code: tuple[str, ...]


def _always(line: str) -> Remedy:
    return Remedy((line,), (line,))


# Stands for what fits the script's own optimizers, where these are known.
_FASTER_UPDATE: Final = "one kernel for the whole update: torch.optim.AdamW(..., fused=True)"

# torch's own optimizers, by what they take.
TAKE_FUSED: Final = ("Adam", "AdamW", "SGD", "Adagrad")
TAKE_FOREACH: Final = (
    *("ASGD", "Adadelta", "Adafactor", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop"),
)

REMEDIES: Final[Mapping[str, Remedy]] = {
    "DATA002": Remedy(
        ("keep workers alive between epochs: loader.persistent: true",),
        (
            "keep workers alive between epochs: DataLoader(..., persistent_workers=True)",
            "build the DataLoader once, before the loop over epochs",
        ),
    ),
    "COPY001": Remedy(
        (
            "overlap copies with computing: loader.pin: true",
            "transfer smaller types and convert them on the device: uint8 images, bit planes",
        ),
        (
            PINNED,
            "transfer uint8 and convert on the device: x.to(device).float().div_(255)",
            "move what is the same in every step to the device once, before the loop",
        ),
    ),
    "LAUNCH001": Remedy(
        (
            "train.compile.scope: regions, train.compile.mode: reduce-overhead",
            "give each launch more work: raise train.batch_size, lower train.accumulate",
            "model.kernels: fused, optimizer.fused: on",
        ),
        (
            'model = torch.compile(model, mode="reduce-overhead"); compare its gradients once with '
            "those of the uncompiled model (pitstop explain LAUNCH001)",
            LARGER_LAUNCHES,
            _FASTER_UPDATE,
            "put loops over small tensors into one batched operation",
        ),
    ),
    "SYNC001": Remedy(
        ("read values less often: log.every_steps, log.norm_every_steps",),
        (
            "keep values on the device: total += loss.detach(); call .item() once every 50 steps",
            "make tensors on the device: torch.zeros(n, device=device), not torch.zeros(n).cuda()",
            "remove torch.cuda.synchronize() and torch.cuda.empty_cache() from the loop",
        ),
    ),
    "TRAFFIC001": Remedy(
        (
            "fuse element-wise work: train.compile.scope: regions",
            "halve the bytes: train.precision: bf16",
            "model.kernels: fused",
        ),
        (
            "fuse element-wise work: model = torch.compile(model)",
            HALF_BYTES,
            "torch.nn.functional.scaled_dot_product_attention instead of materialised scores",
        ),
    ),
    "COMM001": Remedy(
        (
            "sync gradients less often: raise train.accumulate (one sync per update)",
            "give each sync more computing to overlap with: raise train.batch_size",
        ),
        (
            "under gradient accumulation: with model.no_sync(): for all but the last micro-batch",
            "DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=100)",
            "call all_reduce for logging every 50 steps, not in every one",
        ),
    ),
    "OPT001": Remedy(
        (
            "one kernel for the whole update: optimizer.fused: on",
            "update less often: raise train.accumulate or train.batch_size",
        ),
        (
            _FASTER_UPDATE,
            "update less often: a larger batch, or gradient accumulation",
            "optimizer.zero_grad(set_to_none=True)",
        ),
    ),
    "RECOMP001": Remedy(
        ("train.recompute: none", "or only the part that does not fit (attention, ffn, a stage)"),
        (
            "remove torch.utils.checkpoint",
            "checkpoint fewer blocks, or only the part with the largest activations",
        ),
    ),
    "EVAL001": Remedy(
        (
            "evaluate less often: raise eval.every_steps",
            "larger evaluation batches: raise eval.batch_size; loader.eval_workers",
        ),
        (
            "evaluate less often, or on a fixed part of the data between full evaluations",
            "with torch.inference_mode(): and a larger batch than in training",
            EVALUATION_WORKERS,
        ),
    ),
    "CKPT001": Remedy(
        ("save less often: raise checkpoint.every_steps",),
        (
            "save less often: every so many minutes, not every so many steps",
            "copy the state to the host first and write it from a thread",
        ),
    ),
    "LOG001": Remedy(
        (
            "log less often: raise log.every_steps, log.progress_every_steps",
            "log.memory_every_steps, log.norm_every_steps, log.tensorboard: false",
        ),
        ("if step % 50 == 0: around the lines above", BARS, LOG_FILE),
    ),
    "HOST001": Remedy(
        ("check the lines above: they run in every step",),
        (MOVED_OUT, "replace loops over samples or pixels by operations on whole tensors"),
    ),
    "LOSS001": Remedy(
        (
            "compute costly terms less often: loss.<term>.every_steps",
            "a lighter network, fewer layers, or smaller images for the costly term",
        ),
        (
            LOSS_LOOPS,
            "compute the costly term every few steps: if step % 4 == 0:",
            FROZEN_HALF,
            FROZEN_LAYERS,
        ),
    ),
    "MEM002": Remedy(
        ("lower cache.budget",), ("lower the cache's size, or share one cache between all workers",)
    ),
    "MEM003": Remedy(
        (
            "lower train.batch_size by a little, or recompute one more part: train.recompute",
            "start with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        ),
        (
            "start with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            SAME_SHAPES,
            "remove torch.cuda.empty_cache() from the loop",
        ),
    ),
    "SHARE001": _always("stop the other job, or run this one where cores are free"),
    "COMPILE001": Remedy(
        (
            "keep shapes the same: loader.drop_last: true, one crop size; no train.crop_schedule",
            "train.compile.scope: regions, so that less is recompiled",
        ),
        (
            FEW_SHAPES,
            "torch.compile(model, dynamic=True), or torch._dynamo.mark_dynamic(x, 0)",
            "pass numbers that change as tensors, not as Python values",
        ),
    ),
    "COMPILE002": Remedy(
        ("train.compile.scope: regions, so that breaks lie between regions",),
        (
            "fix the reasons above; torch.compile(model, fullgraph=True) refuses to break",
            "take print, .item() and branches on tensor values out of forward",
        ),
    ),
    "PREC001": Remedy(
        ("train.precision: bf16", "or, with fp32 results: train.precision: tf32"),
        (
            "with torch.autocast('cuda', dtype=torch.bfloat16): around forward and loss",
            "or torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True",
        ),
    ),
    "TENSOR001": Remedy(
        (
            "widths, heads and class counts that are multiples of 8 (model.*)",
            "train.channels_last: true for convolutions",
        ),
        (
            "make widths, head sizes and class counts multiples of 8 (pad the last layer)",
            "model.to(memory_format=torch.channels_last) and the same for its input",
        ),
    ),
    "BATCH001": Remedy(
        ("raise train.batch_size and lower train.accumulate by the same factor",),
        (LARGER_BATCH, "a larger effective batch changes training: rescale the learning rate"),
    ),
    "CLOCK001": _always("check the host's cooling and power supply, or use another device"),
    "NAN001": Remedy(
        (
            "train.precision: bf16 instead of fp16, train.clip.norm, a lower optimizer.lr",
            "train.on_nan: stop, to end the run at once",
        ),
        (
            "bfloat16 instead of float16; a GradScaler where it is float16",
            "torch.nn.utils.clip_grad_norm_, a lower learning rate, an epsilon under roots",
            "find the operation once with torch.autograd.set_detect_anomaly(True)",
        ),
    ),
    "DEBUG001": Remedy(
        ("call torch.autograd.set_detect_anomaly(True) only while you look for a NaN",),
        (
            "remove torch.autograd.set_detect_anomaly(True) and detect_anomaly() from the script",
            "with Lightning: Trainer(detect_anomaly=False)",
            "see what it costs: `pitstop tune -- CMD` runs the script without it, in turns",
        ),
    ),
    "TIME001": _always("name the missing parts with spans and run again"),
    "STALL001": Remedy(
        (
            "check that line, and what the host did at that time: storage, swapping, other jobs",
            "measure more steps to see whether it recurs",
        ),
        (
            "check that line, and what the host did at that time: storage, swapping, other jobs",
            "measure more steps to see whether it recurs: `pitstop doctor --steps 1000 -- CMD`",
        ),
    ),
    "OUTSIDE001": Remedy(("do less of it, or less often",), ("do less of it, or less often",)),
}


def remedy_for(facts: Facts, code: str) -> tuple[str, ...]:
    """Give the fix in the terms of the run: settings or code."""
    remedy = REMEDIES[code]
    return remedy.settings if facts.is_engine_run else tuple(_fitting(facts, remedy.code))


def _fitting(facts: Facts, lines: tuple[str, ...]) -> Iterator[str]:
    kinds = () if facts.setup is None else facts.setup.optimizers
    for line in lines:
        if line == _FASTER_UPDATE and kinds:
            yield from dict.fromkeys(text for kind in kinds for text in _faster_update(kind))
        elif (text := fitted(facts, line)) is not None:
            yield text


def _faster_update(kind: str) -> Iterator[str]:
    """Say how an optimizer updates faster, by its class and its way of updating."""
    name, _, way = kind.rstrip(")").partition("(")
    if name in TAKE_FUSED and "fused" not in way:
        yield f"one kernel for the whole update: torch.optim.{name}(..., fused=True)"
    elif name in TAKE_FOREACH and "foreach" not in way:
        yield f"update many weights at a time: torch.optim.{name}(..., foreach=True)"
    elif name == "LBFGS":
        yield "keep less history: torch.optim.LBFGS(..., history_size=10)"
