"""Settings of torch as a whole: threads, number formats, debugging left on, copies."""

import functools
from typing import Any, Callable, List, Mapping

from pitstop_probe.hooks.patches import Patch, replace, tracing_test
from pitstop_probe.interventions.sites import Sites

Make = Callable[[Callable[..., Any]], Callable[..., Any]]


def set_switches(torch: Any, changes: Mapping[str, str], sites: Sites) -> List[Patch]:
    """Set what is wanted, and note where the script sets something itself."""
    patches = [
        patch
        for name, switch in _SWITCHES.items()
        if name in changes
        for patch in switch(torch, name + "=" + changes[name], sites)
    ]
    noted = [name for name in _NOTED if name not in changes]
    return patches + [replace(torch, _NOTED[name], _noting(sites, name)) for name in noted]


def _noting(sites: Sites, name: str) -> Make:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            # A loader's worker sets its threads to one: no line of the script's.
            if name != "threads" or sites.is_called_by_script():
                sites.built(name, sites.place(), value=repr(args[0]) if args else "")
            return original(*args, **kwargs)

        return call

    return make


def _threads(torch: Any, change: str, sites: Sites) -> List[Patch]:
    """Set the threads of operations; what the script sets later is left out.

    What torch sets itself is not: a loader's worker that computed with all threads would take the
    cores from the training.
    """
    torch.set_num_threads(int(change.partition("=")[2]))
    sites.changed(change, sites.place(), "torch")

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any) -> Any:
            if not sites.is_called_by_script():
                return original(*args)
            sites.changed(change, sites.place(), "torch.set_num_threads")
            return None

        return call

    return [replace(torch, "set_num_threads", make)]


def _tf32(torch: Any, change: str, sites: Sites) -> List[Patch]:
    """Allow TF32 in the older way: after the newer one, scripts that ask in the older fail."""
    torch.set_float32_matmul_precision("high")
    sites.changed(change, sites.place(), "torch")
    return []


def _cudnn_benchmark(torch: Any, change: str, sites: Sites) -> List[Patch]:
    torch.backends.cudnn.benchmark = True
    sites.changed(change, sites.place(), "torch")
    return []


def _anomaly_detection(torch: Any, change: str, sites: Sites) -> List[Patch]:
    """Leave anomaly detection off, which all ways to switch it on go through one function for."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any) -> Any:
            if args[0]:
                sites.changed(change, sites.place(), "anomaly detection")
            return original(*(False, *args[1:]))

        return call

    return [replace(torch, "set_anomaly_enabled", make)]


def _non_blocking(torch: Any, change: str, sites: Sites) -> List[Patch]:
    """Copy from pinned memory without waiting: torch keeps it until the device has read it."""
    is_traced = tracing_test(torch)

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def copy(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            is_said = "non_blocking" in kwargs or any(isinstance(each, bool) for each in args)
            if not is_said and not is_traced() and not tensor.is_cuda and tensor.is_pinned():
                kwargs["non_blocking"] = True
                sites.changed(change, sites.place(), "copy")
            return original(tensor, *args, **kwargs)

        return copy

    return [replace(torch.Tensor, name, make) for name in ("to", "cuda")]


_SWITCHES = {
    "threads": _threads,
    "tf32": _tf32,
    "cudnn_benchmark": _cudnn_benchmark,
    "anomaly_detection": _anomaly_detection,
    "non_blocking": _non_blocking,
}
# What the script may set itself, by the function that sets it.
_NOTED = {"threads": "set_num_threads", "anomaly_detection": "set_anomaly_enabled"}
