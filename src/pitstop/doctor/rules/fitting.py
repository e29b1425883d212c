"""Which advice fits a script: no advice on what it does not have.

Each function gives the line of advice as it fits the facts, or None where it does not fit at all.
Where the facts do not tell, the general line stands.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

from pitstop.doctor.facts import Facts
from pitstop.doctor.host_lines import lines_of_part
from pitstop.doctor.rules.places import mentions
from pitstop.records.script import HostLines, LoaderSetup

PINNED: Final = "DataLoader(..., pin_memory=True) and batch.to(device, non_blocking=True)"
LARGER_LAUNCHES: Final = "give each launch more work: a larger batch_size in the DataLoader"
SAME_SHAPES: Final = (
    "keep shapes the same from step to step: DataLoader(..., drop_last=True), padding"
)
FEW_SHAPES: Final = "keep shapes the same: DataLoader(..., drop_last=True), pad to a few sizes"
LARGER_BATCH: Final = (
    "DataLoader(..., batch_size=...) larger; with accumulation, fewer micro-batches"
)
EVALUATION_WORKERS: Final = (
    "give the evaluation's DataLoader workers of its own, with persistent_workers=True"
)
LOSS_LOOPS: Final = (
    "loops over samples in the lines above: operations on whole tensors instead, without .item()"
)
FROZEN_HALF: Final = (
    "run a frozen network in the loss under bf16 autocast, and its target's half under "
    "torch.no_grad()"
)
FROZEN_LAYERS: Final = "use fewer of its layers, or a crop of the images"
BARS: Final = "tqdm(..., mininterval=1.0); set_postfix(refresh=False)"
MOVED_OUT: Final = "move the lines above out of the loop, or run them every 50 steps"
LOG_FILE: Final = "keep the log file open; write to it from a queue or once every 50 steps"
HALF_BYTES: Final = "halve the bytes: with torch.autocast('cuda', dtype=torch.bfloat16):"

_BAR_NAMES: Final = re.compile(r"tqdm|set_postfix|set_description|\bpbar\b|progress")
_FILE_NAMES: Final = re.compile(
    r"\bopen\(|\.write\b|\.flush\b|csv|json|add_scalar|logg|SummaryWriter"
)


def has_no_loader(facts: Facts) -> bool:
    """Whether a script is known to train without a DataLoader."""
    return facts.setup is not None and not facts.setup.loaders


def _without_loader(line: str, otherwise: str) -> Callable[[Facts], str | None]:
    return lambda facts: otherwise if has_no_loader(facts) else line


def _evaluation_workers(facts: Facts) -> str | None:
    loaders = () if facts.setup is None else facts.setup.loaders
    others = [loader for loader in loaders if not loader.trains]
    if facts.setup is not None and not any(map(_lacks_workers, others)):
        return None
    return EVALUATION_WORKERS


def _lacks_workers(loader: LoaderSetup) -> bool:
    return not loader.workers or not loader.persistent


def _moved_out(facts: Facts) -> str:
    host, found = lines_of_part(facts, "host"), facts.readings.last(HostLines)
    if host is None or found is None:
        return MOVED_OUT
    first = host.lines[0]
    places = [
        line.part for line in found.lines if (line.file, line.line) == (first.file, first.line)
    ]
    # Where its passes and updates are, too, a package's loop runs below that line.
    if not {"backward", "optimizer"}.issubset(places):
        return MOVED_OUT
    return "the call above makes the steps itself: check its settings and callbacks"


def _frozen_half(facts: Facts) -> str | None:
    frozen = _frozen(facts)
    if not frozen:
        return None
    where = f"run the frozen {', '.join(frozen)}"
    on_target = "what it makes of the target under torch.no_grad()"
    if not facts.on_gpu:
        return f"{where} on smaller inputs or less often, and {on_target}"
    return f"{where} under bf16 autocast, and {on_target}"


def _frozen_layers(facts: Facts) -> str | None:
    if _frozen(facts):
        return FROZEN_LAYERS
    return "compile it: loss_fn = torch.compile(loss_fn)"


def _frozen(facts: Facts) -> tuple[str, ...]:
    return () if facts.setup is None else facts.setup.frozen


def _if_seen(line: str, words: re.Pattern[str]) -> Callable[[Facts], str | None]:
    """Keep a line where the lines seen speak of its subject, or none were seen."""

    def fitted(facts: Facts) -> str | None:
        found = facts.readings.last(HostLines)
        return line if found is None or mentions(found.lines, words) else None

    return fitted


FITTED: Final[Mapping[str, Callable[[Facts], str | None]]] = {
    PINNED: _without_loader(PINNED, "batch.pin_memory().to(device, non_blocking=True)"),
    LARGER_LAUNCHES: _without_loader(LARGER_LAUNCHES, "give each launch more work: a larger batch"),
    SAME_SHAPES: _without_loader(
        SAME_SHAPES, "keep shapes the same from step to step: batches of one size, padding"
    ),
    FEW_SHAPES: _without_loader(
        FEW_SHAPES, "keep shapes the same: batches of one size, pad to a few sizes"
    ),
    LARGER_BATCH: _without_loader(
        LARGER_BATCH, "a larger batch; with accumulation, fewer micro-batches"
    ),
    EVALUATION_WORKERS: _evaluation_workers,
    MOVED_OUT: _moved_out,
    LOSS_LOOPS: lambda facts: None if _frozen(facts) else LOSS_LOOPS,
    FROZEN_HALF: _frozen_half,
    FROZEN_LAYERS: _frozen_layers,
    BARS: _if_seen(BARS, _BAR_NAMES),
    LOG_FILE: _if_seen(LOG_FILE, _FILE_NAMES),
    HALF_BYTES: lambda facts: HALF_BYTES if facts.on_gpu else HALF_BYTES.replace("cuda", "cpu"),
}


def fitted(facts: Facts, line: str) -> str | None:
    """Give a line of advice as it fits; None where it does not."""
    fit = FITTED.get(line)
    return line if fit is None else fit(facts)
