"""How many samples a step trained on: known from the loader or from the model's batch, or not.

What a model is given tells its batch where all tensors agree in their first dimension and that can
be nothing else: not the length of a sequence, a list of pictures or the steps of an episode. Where
a loader brought the batch, it is the loader who knows.
"""

from itertools import chain
from operator import itemgetter
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from pitstop_probe.clock import Step, known_among
from pitstop_probe.steps.parts import Rounds, batches_by_calls

# A training call of a model: its identity, and its samples where they are known.
Call = Tuple[int, Optional[int]]

_DEEPEST = 3
# A batch that ends a pass may be smaller, and a first one differ; a third size is no batch's.
_MOST_SIZES = 2


class _UnknownBatchError(Exception):
    """What a model was given does not tell its batch."""


def batch_size(args: Any, kwargs: Any, *, may_be_sequences: bool = False) -> Optional[int]:
    """Give the samples in a call of a model; None where its arguments do not tell.

    Args:
        args: What it was given.
        kwargs: By name.
        may_be_sequences: Whether the first dimension may be time.
    """
    try:
        shapes = list(_shapes((*args, *kwargs.values()), 0))
    except Exception:  # noqa: BLE001 - a nested tensor, for one, has no shape
        return None
    found = {shape[0] for shape in shapes if len(shape) > 1}
    if len(found) != 1 or (may_be_sequences and max(map(len, shapes)) <= _SEQUENCE_DIMENSIONS):
        return None
    return int(found.pop())


# Time, batch, features.
_SEQUENCE_DIMENSIONS = 3


def _shapes(values: Any, depth: int) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list):
            raise _UnknownBatchError  # of pictures, of scales, of heads: its tensors are no batches
        if isinstance(value, (tuple, dict)):
            if depth < _DEEPEST:
                inner = value.values() if isinstance(value, dict) else value
                yield from _shapes(inner, depth + 1)
        elif getattr(value, "shape", None) is not None:
            yield value.shape


def first_dimension(batch: Any, depth: int = 0) -> Optional[int]:
    """First dimension of the first tensor in a batch that a loader brought."""
    if isinstance(batch, (dict, list, tuple)):
        if depth < _DEEPEST:
            for item in batch.values() if isinstance(batch, dict) else batch:
                size = first_dimension(item, depth + 1)
                if size is not None:
                    return size
        return None
    try:
        shape = getattr(batch, "shape", None)
        return int(shape[0]) if shape is not None and len(shape) else None
    except Exception:  # noqa: BLE001 - a nested tensor, for one, has no shape
        return None


def puts_time_first(module: Any) -> bool:
    """Whether something in a module takes sequences with their time before their batch."""
    try:
        return any(getattr(inner, "batch_first", True) is False for inner in module.modules())
    except Exception:  # noqa: BLE001 - an odd module is the script's right
        return False


class Counts:
    """Counts the samples and the micro-steps of steps, by their loaders and the calls of models."""

    __slots__ = ("_by_loader", "_last", "_samples", "_sizes", "_steps")

    def __init__(self) -> None:
        self._samples = 0
        self._steps = 0
        # How often each model was called in the last step that was sampled, and in what.
        self._last: Tuple[Dict[int, int], Optional[Rounds]] = ({}, None)
        # What the loader brought in the last step that was sampled, where the calls said another
        # number.
        self._by_loader: Optional[int] = None
        # Different ones, where no loader brings batches.
        self._sizes: Set[int] = set()

    @property
    def samples_per_step(self) -> Optional[float]:
        """Mean over the steps whose samples are known."""
        return self._samples / self._steps if self._samples and not self._varies else None

    @property
    def _varies(self) -> bool:
        return len(self._sizes) > _MOST_SIZES

    def add(self, step: Step, made: Sequence[Call], rounds: Optional[Rounds] = None) -> None:
        """Count for a step; one without known rounds is taken to be as one with such calls."""
        samples, step.micro_steps = self._counted(made, rounds)
        (step.samples,) = self._kept([samples])

    def add_run(
        self, made: List[Sequence[Call]]
    ) -> Tuple[List[Optional[int]], List[Optional[int]]]:
        """Count for steps in a row; give the samples and the micro-steps of each."""
        if set(map(len, made)) == {1} and self._by_loader is None:
            samples = list(map(itemgetter(1), chain.from_iterable(made)))
            return self._kept(samples), [1] * len(made)
        counted = [self._counted(calls, None) if calls else (None, None) for calls in made]
        samples, micro_steps = map(list, zip(*counted))
        return self._kept(samples), micro_steps

    def _kept(self, samples: List[Optional[int]]) -> List[Optional[int]]:
        """Add samples up, and give them; none where they are no batch's."""
        known = known_among(samples)
        rounds = self._last[1]
        if rounds is None or not rounds.batches:
            self._sizes.update(known)
            if self._varies:
                return [None] * len(samples)
        self._samples += sum(known)
        self._steps += len(known)
        return samples

    def _counted(
        self, made: Sequence[Call], rounds: Optional[Rounds]
    ) -> Tuple[Optional[int], Optional[int]]:
        """Give the samples and the micro-steps of a step, where they are known."""
        sizes: Dict[int, List[Optional[int]]] = {}
        for model, size in made:
            sizes.setdefault(model, []).append(size)
        calls = {model: len(of_model) for model, of_model in sizes.items()}
        if rounds is not None:
            return self._sampled(calls, list(sizes.values()), rounds)
        if self._last[0] == calls:
            if self._by_loader is not None:
                return self._by_loader, self._last[1].made  # type: ignore[union-attr]
            rounds = self._last[1]
        elif len(made) == 1 or max(calls.values()) == 1:
            rounds = Rounds(1)
        if rounds is None or not rounds.made:
            return (made[0][1], 1) if len(made) == 1 else (None, None)
        return batches_by_calls(list(sizes.values()), rounds), rounds.made

    def _sampled(
        self, calls: Dict[int, int], sizes: List[List[Optional[int]]], rounds: Rounds
    ) -> Tuple[Optional[int], Optional[int]]:
        """Count for a step whose fetches are known, and remember what it was like."""
        self._last = calls, rounds
        by_calls = batches_by_calls(sizes, rounds) if rounds.made else None
        if not rounds.made and len(calls) == 1 and len(sizes[0]) == 1:
            by_calls, rounds = sizes[0][0], rounds._replace(made=1)
        samples = rounds.samples(by_calls)
        self._by_loader = samples if samples != by_calls else None
        return samples, rounds.made or None
