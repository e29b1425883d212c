"""What each number of a family is by its name, its unit and where it stands on the line."""

import re
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from pitstop.logs.general.families import Array, Family
from pitstop.logs.general.hints import HINTS, STEPS
from pitstop.logs.general.tokens import Slot

Role = Literal[
    "step", "epoch", "count", "total", "loss", "learning rate", "time", "time of a step",
    "elapsed", "left", "wait for data", "samples/s", "rate", "batch size", "memory", "value", "",
]  # fmt: skip
"""``step`` and ``epoch`` are counts by their names, ``count`` is one that stands before a slash."""

TIMES: Final[tuple[Role, ...]] = ("time", "time of a step", "wait for data")
COUNTS: Final[tuple[Role, ...]] = ("step", "epoch", "count")
OF_A_TRAINING: Final[tuple[Role, ...]] = (*COUNTS, *TIMES, "loss", "learning rate", "elapsed")
"""What lines print that belong to a training: none of them may be left out unnamed."""

_STEP_WORDS = frozenset([
    "step", "steps", "iter", "iters", "iteration", "iterations", "it", "itr", "batch",
    "batches", "update", "updates", "minibatch", "globalstep", "niter",
])  # fmt: skip
_AROUND_STEP = frozenset(("id", "idx", "index", "no", "number", "current", "global", "train"))
_NO_STEP = frozenset([
    "val", "valid", "validation", "test", "eval", "best", "warmup", "max", "num", "per",
    "every", "interval", "patience", "total", "size", "remaining", "left", "saved", "resume",
    "resumed", "from",
])  # fmt: skip
_BATCH_WORDS = frozenset(("batch", "size", "bs", "train", "training"))
"""A name of these alone is the batch of one step on one rank; a global or micro one is another."""
_EPOCH_WORDS = frozenset(("epoch", "epochs", "ep", "epo"))
_TIME_WORDS = frozenset([
    "time", "timer", "timing", "dt", "duration", "took", "takes", "sec", "secs", "seconds",
    "cost", "elapsed", "batchtime", "datatime", "itertime", "steptime", "traintime",
])  # fmt: skip
_TRAINING_WORDS = _STEP_WORDS | _EPOCH_WORDS | _TIME_WORDS | {"loss", "lr"}
_LEFT_WORDS = frozenset(("eta", "remaining", "left", "remain"))
_DATA_WORDS = frozenset(("data", "load", "loading", "fetch", "dataloader", "loader", "reader"))
_RATE = re.compile(r"(?i)(?:/|[ _]?per[ _]?)s(?:ec|econd)?\Z")
_SAMPLE_WORDS = frozenset(["samples", "sample", "imgs", "img", "images", "image", "examples"])
_MEMORY_WORDS = frozenset(
    ["mem", "memory", "vram", "cuda", "alloc", "allocated", "reserved", "maxmem", "peak", "gpumem"]
)
_NO_NAMES = frozenset(
    ["d", "day", "days", "h", "hr", "hours", "m", "min", "mins", "s", "sec", "ms"]
)
_PREPOSITIONS = frozenset(
    (word,) for word in ("for", "of", "after", "in", "every", "at", "from", "to", "with", "than")
)
_RESULT_WORDS = frozenset(("acc", "accuracy", "correct"))
_NEED_NO_NAME: Final[tuple[Role, ...]] = (
    "count", "total", "elapsed", "left", "samples/s", "rate", "time of a step",
)  # fmt: skip
_BY_UNIT: Final[dict[str, Role]] = {
    "rate of samples": "samples/s",
    "rate of steps": "rate",
    "rate of tokens": "rate",
    "rate": "rate",
    "time of a step": "time of a step",
    "percent": "value",
}


@dataclass(slots=True, eq=False)
class Reading:
    """A family, and what its numbers are."""

    family: Family
    roles: list[Role]

    def places(self, *roles: Role) -> list[int]:
        """Where numbers of some roles stand."""
        return [place for place, role in enumerate(self.roles) if role in roles]

    def column(self, role: Role) -> Array | None:
        """The first number of a role on every line; None without any."""
        places = self.places(role)
        return self.family.column(places[0]) if places else None

    @property
    def is_of_training(self) -> bool:
        """Whether something that belongs to a training is named on its lines, quoted or not."""
        said = {word for slot in self.family.slots for word in slot.words}
        return bool(said & _TRAINING_WORDS) or any(role in OF_A_TRAINING for role in self.roles)


def decide(family: Family) -> Reading:
    """Say what every number of a family is."""
    _name_parted(family)
    slots = family.slots
    roles: list[Role] = [_role(slot, family.column(place)) for place, slot in enumerate(slots)]
    for place, slot in enumerate(slots):
        follows = slots[place + 1] if place + 1 < len(slots) else slot
        if slot.unit == "duration" and follows.opens == "<":
            roles[place], roles[place + 1] = "elapsed", "left"
        elif _is_part(slot, follows):
            for part in range(place, min(place + 2, len(roles))):
                roles[part] = ""
        elif roles[place] not in _NEED_NO_NAME and (
            _is_nameless(slot) or (family.is_bar and slot.unit == "percent")
        ):
            roles[place] = ""
    _know_meters(family, roles)
    return Reading(family, roles)


def _is_nameless(slot: Slot) -> bool:
    """Whether a number has no name of its own: ``samples (100 per batch)``, ``board 8_1_3``.

    ``Epoch 3-20`` has one.
    """
    is_aside = slot.opens == "(" and not slot.is_mean
    is_part = slot.is_fragment and not set(slot.words) & (_EPOCH_WORDS | _STEP_WORDS)
    return not slot.words or is_aside or is_part or slot.words[-1:] in _PREPOSITIONS


def _know_meters(family: Family, roles: list[Role]) -> None:
    """Know the meters of pytorch/examples, ``Time 0.52 (0.50)  Data 0.00 (0.01)``: of one step."""
    slots = family.slots
    of_data = [place for place, role in enumerate(roles) if role == "wait for data"]
    is_meter = [place + 1 < len(slots) and slots[place + 1].is_mean for place in range(len(slots))]
    for place, role in enumerate(roles):
        if role == "time" and is_meter[place] and any(is_meter[data] for data in of_data):
            roles[place] = "time of a step"


def _name_parted(family: Family) -> None:
    """Name two numbers of ``loss of epoch 3 is 0.1`` by the two parts of their name."""
    slots, names = list(family.slots), list(family.names)
    for place in range(len(slots) - 1):
        value, _, count = slots[place].name.rpartition(" of ")
        if value and not slots[place + 1].name and not slots[place + 1].is_total:
            slots[place] = replace(slots[place], name=count)
            slots[place + 1] = replace(slots[place + 1], name=value)
            names[place : place + 2] = count, value
    family.slots, family.names = tuple(slots), tuple(names)


def _is_part(slot: Slot, follows: Slot) -> bool:
    """Whether a number is a part of what the next one ends: ``3h 20min``, ``for 50 iter: 9``."""
    if follows is slot:
        return slot.name.lower() in _NO_NAMES
    is_time = not follows.name and follows.unit == "time" and not follows.opens
    return is_time or follows.name.lower() in _NO_NAMES or slot.words[-1:] in _PREPOSITIONS


def _role(slot: Slot, values: Array) -> Role:
    if slot.is_mean:
        return ""
    if slot.is_total:
        return "total"
    words = set(slot.words)
    return _by_unit(slot) or _of_training(slot, words, values) or _measured(slot, words)


def _by_unit(slot: Slot) -> Role:
    if slot.unit in _BY_UNIT:
        return _BY_UNIT[slot.unit]
    rate = _RATE.search(slot.name)
    if rate is not None and not slot.unit:
        return "samples/s" if set(slot.words) & _SAMPLE_WORDS else "rate"
    hint = HINTS.get(slot.name.lower().replace(" ", "_"))
    is_known = hint is not None and (slot.unit == "time" or not hint.needs_unit)
    return hint.role if hint is not None and is_known else ""


def _of_training(slot: Slot, words: set[str], values: Array) -> Role:
    if _names_a_loss(slot, words) and not _ends_as_count(slot, values):
        return "loss"
    if words & {"lr", "learningrate"} or {"learning", "rate"} <= words:
        return "learning rate"
    if words & {"size", "bs"} and words & {"batch", "batchsize", "bs"}:
        return "batch size" if words <= _BATCH_WORDS else "value"
    return _count(slot, words, values)


def _count(slot: Slot, words: set[str], values: Array) -> Role:
    if slot.unit or not is_count(np.floor(values)):
        return ""
    if words & _EPOCH_WORDS and not words & (_STEP_WORDS | _NO_STEP | _TIME_WORDS):
        return "epoch" if is_count(values) or words <= _EPOCH_WORDS else ""
    if not is_count(values) or words & _RESULT_WORDS:
        return ""
    if _names_a_step(slot):
        return "step"
    return "count" if slot.has_total else ""


def _measured(slot: Slot, words: set[str]) -> Role:
    if words & _LEFT_WORDS:
        return "left"
    if slot.unit == "time" or words & _TIME_WORDS or slot.name in ("t", "T"):
        return "wait for data" if words & _DATA_WORDS else "time"
    if words and words <= _DATA_WORDS:
        return "wait for data"
    if slot.unit == "bytes" and words & _MEMORY_WORDS:
        return "memory"
    return "value" if slot.name else ""


def _names_a_loss(slot: Slot, words: set[str]) -> bool:
    """Whether a name is a loss's; BasicSR and its children call theirs ``l_pix``, ``l_g_gan``."""
    is_short = slot.name.startswith("l_") and len(slot.words) > 1
    return is_short or any(word.endswith(("loss", "losses", "损失")) for word in words)


def _ends_as_count(slot: Slot, values: Array) -> bool:
    """Whether the last word says what is counted: ``Loss at step 12: 3.4``."""
    last = slot.words[-1:]
    return bool(last) and last[0] in _EPOCH_WORDS | _STEP_WORDS and is_count(values)


def _names_a_step(slot: Slot) -> bool:
    words = slot.words
    if slot.name in STEPS:
        return True
    while len(words) > 1 and words[-1] in _AROUND_STEP:
        words = words[:-1]
    return bool(words) and not set(words) & _NO_STEP and words[-1] in _STEP_WORDS


def is_count(values: Array) -> bool:
    """Whether all are whole numbers that a counter can have."""
    finite = values[np.isfinite(values)]
    return bool(len(finite)) and bool(((finite >= 0) & (finite == np.floor(finite))).all())
