"""What a script uses, as seen in its objects: settings, memory by owner, compilations."""

import dataclasses
import gc
import sys
from typing import Any, Dict, Iterable, List, Optional

_MOST_REASONS = 5

# Before the name of a function, in the names that the compiler gives to what follows a break.
_RESUME = "torch_dynamo_resume_in_"


def describe_setup(
    torch: Any, models: List[str], optimizers: List[Any], loaders: List[Dict[str, Any]]
) -> Dict[str, Any]:
    """Describe the script's set-up; what only the hooks know is added by the caller."""
    parameters = trained_parameters(optimizers)
    device = str(parameters[0].device) if parameters else None
    # A forked process may still hold parameters of its parent's GPU, and must not ask about it.
    on_cuda = device is not None and device.startswith("cuda") and torch.cuda.is_initialized()
    dtypes: Dict[str, int] = {}
    for parameter in parameters:
        name = str(parameter.dtype).replace("torch.", "")
        dtypes[name] = dtypes.get(name, 0) + parameter.numel()
    return {
        "device": device,
        "device_name": torch.cuda.get_device_name(device) if on_cuda else None,
        "models": models,
        "optimizers": [_optimizer_name(optimizer) for optimizer in optimizers],
        "parameters": sum(dtypes.values()) if parameters else None,
        "parameter_dtypes": dtypes,
        "tf32": Float32Products(torch).uses_tf32 if on_cuda else None,
        "compiled": compile_counts() is not None,
        "wrapper": _wrapper(models),
        "cudnn_benchmark": bool(torch.backends.cudnn.benchmark) if on_cuda else None,
        "anomaly_detection": bool(torch.is_anomaly_enabled()),
        "threads": int(torch.get_num_threads()),
        "total_steps": _total_steps(),
        "loaders": loaders,
    }


def frozen_models(models: Iterable[Any]) -> List[str]:
    """Name the classes of models that are called and of which no weight is trained."""
    frozen: Dict[str, None] = {}
    for model in list(models):
        try:
            weights = list(model.parameters())
        except Exception:  # noqa: BLE001, S112 - a module that was taken apart: not known
            continue
        if weights and not any(weight.requires_grad for weight in weights):
            frozen[type(model).__name__] = None
    return list(frozen)


def trained_parameters(optimizers: Iterable[Any]) -> List[Any]:
    """Every parameter of the optimizers, once."""
    found = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                found[id(parameter)] = parameter
    return list(found.values())


def _optimizer_name(optimizer: Any) -> str:
    groups = optimizer.param_groups
    ways = [way for way in ("fused", "foreach") if any(group.get(way) for group in groups)]
    if not ways and any(group.get("foreach", 0) is None for group in groups):
        # Left to torch, which takes foreach where all parameters are on a GPU.
        ways = ["foreach" if _all_on_cuda(optimizer) else "for-loop"]
    return "{}({})".format(type(optimizer).__name__, ", ".join(ways or ["for-loop"]))


def _all_on_cuda(optimizer: Any) -> bool:
    return all(parameter.is_cuda for parameter in trained_parameters([optimizer]))


def _wrapper(models: List[str]) -> Optional[str]:
    if "DistributedDataParallel" in models:
        return "DDP"
    if any("FSDP" in name or "FullyShardedDataParallel" in name for name in models):
        return "FSDP"
    return None


def _total_steps() -> Optional[int]:
    """Ask a trainer that knows; nothing is guessed from loops or loaders."""
    if not any(name in sys.modules for name in _TRAINERS):
        return None
    steps = 0
    for found in gc.get_objects():
        kind = type(found)
        if kind.__name__ == "TrainerState":
            steps = max(steps, getattr(found, "max_steps", 0) or 0)
        elif kind.__name__ == "Trainer" and kind.__module__.startswith(_LIGHTNING):
            steps = max(steps, _lightning_steps(found))
    return steps if steps > 0 else None


def shared_caches() -> List[Dict[str, Any]]:
    """What pitstop's own caches have done, where the script uses some."""
    module = sys.modules.get("pitstop.data.cache.shared")
    caches = [] if module is None else module.open_caches()
    return [dataclasses.asdict(cache.stats()) for cache in caches]


_LIGHTNING = ("lightning.", "pytorch_lightning.")
_TRAINERS = ("transformers.trainer_callback", "lightning.pytorch", "pytorch_lightning")


def _lightning_steps(trainer: Any) -> int:
    """Steps after which a trainer of Lightning ends; 0 where it does not say, or may go on."""
    limits = [trainer.max_steps] if trainer.max_steps > 0 else []
    batches = trainer.num_training_batches
    if (trainer.max_epochs or 0) > 0 and 0 < batches < float("inf"):
        of_epoch = -(-int(batches) // trainer.accumulate_grad_batches)
        limits.append(trainer.max_epochs * of_epoch)
    return int(min(limits, default=0))


class Float32Products:
    """How exactly torch multiplies float32 matrices on a GPU, asked and set in the newest way.

    Once that was used, the older ways raise; where an older one was used, this one agrees.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._is_new = hasattr(torch.backends.cuda.matmul, "fp32_precision")
        self.full, self.tf32 = ("ieee", "tf32") if self._is_new else ("highest", "high")

    @property
    def precision(self) -> str:
        """In torch's own words, of which there are more than the two."""
        if self._is_new:
            return self._torch.backends.cuda.matmul.fp32_precision
        return self._torch.get_float32_matmul_precision()

    @precision.setter
    def precision(self, precision: str) -> None:
        if self._is_new:
            self._torch.backends.cuda.matmul.fp32_precision = precision
        else:
            self._torch.set_float32_matmul_precision(precision)

    @property
    def uses_tf32(self) -> bool:
        """Whether TF32 may be used."""
        return self.precision in ("tf32", "high", "medium")


def memory_by_owner(optimizers: List[Any]) -> Optional[Dict[str, Any]]:
    """Say what the optimizers' parameters, gradients and state hold; None without parameters.

    Where gradients live: between a backward pass and the next time they are let go.
    """
    parameters = trained_parameters(optimizers)
    if not parameters:
        return None
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    state = [
        value
        for optimizer in optimizers
        for values in list(optimizer.state.values())
        if isinstance(values, dict)
        for value in values.values()
        if hasattr(value, "element_size")
    ]
    return {
        "device": str(parameters[0].device),
        "parameters_bytes": _bytes(parameters),
        "gradients_bytes": _bytes(gradients),
        "optimizer_bytes": _bytes(state),
    }


def device_memory(torch: Any, device: str, before: Dict[str, int]) -> Dict[str, Any]:
    """Say what a device's allocator holds and held; None where it does not count.

    Args:
        torch: The script's torch.
        device: Of the parameters.
        before: `allocator_counts` at the end of warm-up.
    """
    if not device.startswith("cuda") or not torch.cuda.is_initialized():
        names = ("peak", "reserved", "total", "inactive_split")
        return {"alloc_retries": None, **{name + "_bytes": None for name in names}}
    stats = torch.cuda.memory_stats(device)
    counts = allocator_counts(torch)
    return {
        "peak_bytes": stats.get("allocated_bytes.all.peak"),
        "reserved_bytes": stats.get("reserved_bytes.all.peak"),
        "total_bytes": torch.cuda.get_device_properties(device).total_memory,
        "alloc_retries": counts.get("retries", 0) - before.get("retries", 0),
        "inactive_split_bytes": stats.get("inactive_split_bytes.all.current"),
    }


def allocator_counts(torch: Any) -> Dict[str, int]:
    """Counters of the device's allocator that only grow."""
    if not torch.cuda.is_initialized():
        return {}
    return {"retries": int(torch.cuda.memory_stats().get("num_alloc_retries", 0))}


def _bytes(tensors: Iterable[Any]) -> int:
    found = {}
    for tensor in tensors:
        local = getattr(tensor, "_local_tensor", tensor)  # a sharded tensor's own part
        if getattr(local, "is_sparse", False):
            local = local._values()
        try:
            found[local.data_ptr()] = local.numel() * local.element_size()
        except (RuntimeError, ValueError):
            continue  # without storage, or of a size not known yet
    return sum(found.values())


def compile_counts() -> Optional[Dict[str, Any]]:
    """Read torch.compile's own counters; None where nothing was compiled."""
    module = sys.modules.get("torch._dynamo.utils")
    counters = getattr(module, "counters", None)
    if counters is None or not counters["stats"].get("unique_graphs"):
        return None
    breaks = counters.get("graph_break", {})
    # A branch on a tensor's value is not counted as a break, but what it goes on with is.
    places = [str(name).replace(_RESUME, "") for name in counters.get("resumes", {})]
    reasons = [str(reason)[:200] for reason in sorted(breaks, key=breaks.get, reverse=True)]
    reasons += ["a break in {0}, line {2}".format(*place.rpartition("_at_")) for place in places]
    return {
        "graphs": int(counters["stats"]["unique_graphs"]),
        "graph_breaks": max(int(sum(breaks.values())), len(places)),
        "reasons": reasons[:_MOST_REASONS],
    }
