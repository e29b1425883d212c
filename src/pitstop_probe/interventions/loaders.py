"""DataLoaders built with other settings: who loads, how far ahead, into which memory.

The sampler, its seed and the dataset stay as they are, so batches hold the same samples in the same
order. A dataset that draws random numbers draws others in a worker than in the training process.
"""

import functools
import inspect
import random
import sys
from typing import Any, Callable, Collection, Dict, List, Mapping, Optional

from pitstop_probe.hooks.patches import Patch, replace
from pitstop_probe.hooks.torch_hooks import part_of
from pitstop_probe.interventions.sites import Sites

_ARGUMENTS = {
    "loader.workers": "num_workers",
    "loader.prefetch": "prefetch_factor",
    "loader.persistent": "persistent_workers",
    "loader.pin": "pin_memory",
}
# What a loader without workers refuses.
_OF_WORKERS = ("prefetch_factor", "persistent_workers")
# Batches of a dataset, in each process, that are looked at for random numbers.
_WATCHED = 2


def change_loaders(
    torch: Any, changes: Mapping[str, str], places: Optional[Collection[str]], sites: Sites
) -> List[Patch]:
    """See to it that DataLoaders are built as wanted.

    Args:
        torch: The script's torch.
        changes: Settings by name, those of loaders among others.
        places: Lines that build a loader to be changed; None for all.
        sites: Takes what was built and changed.
    """
    wanted = {
        _ARGUMENTS[name]: _value(text) for name, text in changes.items() if name in _ARGUMENTS
    }
    spelled = {
        _ARGUMENTS[name]: name + "=" + changes[name] for name in changes if name in _ARGUMENTS
    }
    stream = torch.utils.data.IterableDataset

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def build(*args: Any, **kwargs: Any) -> Any:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError:
                return original(*args, **kwargs)  # which says what is wrong
            place = sites.place()
            given = bound.arguments
            is_stream = isinstance(given.get("dataset"), stream)
            _note(sites, place, given, is_stream=is_stream)
            if places is None or place in places:
                for name in _changed(given, wanted, is_stream=is_stream):
                    sites.changed(spelled[name], place, "DataLoader")
            return original(*bound.args, **bound.kwargs)

        return build

    fetchers = part_of(torch, "utils.data._utils.fetch")
    return [
        replace(torch.utils.data.DataLoader, "__init__", make),
        replace(fetchers._MapDatasetFetcher, "fetch", lambda fetch: _watched(torch, fetch, sites)),
    ]


def _watched(torch: Any, original: Callable[..., Any], sites: Sites) -> Callable[..., Any]:
    """Note whether a dataset draws random numbers, by its first batches in each process."""
    left: Dict[str, int] = {}

    @functools.wraps(original)
    def fetch(fetcher: Any, index: Any) -> Any:
        name = type(fetcher.dataset).__name__
        if not left.setdefault(name, _WATCHED):
            return original(fetcher, index)
        left[name] -= 1
        before = _random_states(torch)
        batch = original(fetcher, index)
        if _random_states(torch) != before:
            left[name] = 0
            sites.built("draws", "", name=name)
        return batch

    return fetch


def _random_states(torch: Any) -> Any:
    numpy = sys.modules.get("numpy.random")
    drawn = None if numpy is None else numpy.get_state()
    return (
        torch.get_rng_state().tolist(),
        random.getstate(),
        None if drawn is None else (drawn[1].tolist(), drawn[2:]),
    )


def _value(text: str) -> Any:
    return int(text) if text.isdigit() else text == "true"


def _note(sites: Sites, place: str, given: Mapping[str, Any], *, is_stream: bool) -> None:
    size = given.get("batch_size", 1) if given.get("batch_sampler") is None else None
    sites.built(
        "loader",
        place,
        name=type(given.get("dataset")).__name__,
        workers=int(given.get("num_workers", 0)),
        batch_size=size if isinstance(size, int) else None,
        is_stream=is_stream,
    )


def _changed(given: Dict[str, Any], wanted: Mapping[str, Any], *, is_stream: bool) -> List[str]:
    """Put what is wanted among the arguments; name what became different."""
    before = dict(given)
    # Each worker of a stream would give all of it.
    given.update({n: v for n, v in wanted.items() if not (is_stream and n == "num_workers")})
    if not given.get("num_workers", 0):
        for name in _OF_WORKERS:
            given.pop(name, None)
            if name in before:
                given[name] = before[name]
    return [name for name in wanted if name in given and given[name] != before.get(name, 0)]
