"""What a script uses, as seen in its objects: settings, memory by owner, compilations."""

import gc
import sys
from typing import Any, Dict, Iterable, List, Optional

_MOST_REASONS = 5


def describe_setup(
    torch: Any, models: List[str], optimizers: List[Any], loaders: List[Dict[str, Any]]
) -> Dict[str, Any]:
    """Describe the script's set-up; what only the hooks know is added by the caller."""
    parameters = trained_parameters(optimizers)
    device = str(parameters[0].device) if parameters else None
    on_cuda = device is not None and device.startswith("cuda")
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
        "tf32": bool(torch.backends.cuda.matmul.allow_tf32) if on_cuda else None,
        "compiled": compile_counts() is not None,
        "wrapper": _wrapper(models),
        "cudnn_benchmark": bool(torch.backends.cudnn.benchmark) if on_cuda else None,
        "anomaly_detection": bool(torch.is_anomaly_enabled()),
        "threads": int(torch.get_num_threads()),
        "total_steps": _total_steps(),
        "loaders": loaders,
    }


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
    if "transformers.trainer_callback" not in sys.modules:
        return None
    states = [found for found in gc.get_objects() if type(found).__name__ == "TrainerState"]
    steps = max((getattr(state, "max_steps", 0) or 0 for state in states), default=0)
    return int(steps) if steps > 0 else None


def memory_by_owner(torch: Any, optimizers: List[Any], before: Dict[str, int]) -> Dict[str, Any]:
    """Say who holds memory on the device of the parameters.

    Args:
        torch: The script's torch.
        optimizers: Whose parameters and state are counted.
        before: `allocator_counts` at the end of warm-up.
    """
    parameters = trained_parameters(optimizers)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    state = [
        value
        for optimizer in optimizers
        for values in list(optimizer.state.values())
        if isinstance(values, dict)
        for value in values.values()
        if hasattr(value, "element_size")
    ]
    device = str(parameters[0].device) if parameters else "cpu"
    owners: Dict[str, Any] = {
        "device": device,
        "parameters_bytes": _bytes(parameters),
        "gradients_bytes": _bytes(gradients),
        "optimizer_bytes": _bytes(state),
        "peak_bytes": None,
        "reserved_bytes": None,
        "total_bytes": None,
        "alloc_retries": None,
        "inactive_split_bytes": None,
    }
    if device.startswith("cuda"):
        owners.update(_device_memory(torch, device, before))
    return owners


def _device_memory(torch: Any, device: str, before: Dict[str, int]) -> Dict[str, Any]:
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
    reasons = sorted(breaks.items(), key=lambda item: -item[1])[:_MOST_REASONS]
    return {
        "graphs": int(counters["stats"]["unique_graphs"]),
        "graph_breaks": int(sum(breaks.values())),
        "reasons": [str(reason)[:200] for reason, _ in reasons],
    }
