"""What the Hugging Face Trainer leaves: ``trainer_state.json``, and dicts on the console.

Neither has the time of a step. The state's last entry has the time of the whole training, each
evaluation its own; their difference over the steps is all that can be said. transformers 5 writes
the numbers of a dict as strings.
"""

import math
import re

import numpy as np

from pitstop.logs.batch import Batch, Layout
from pitstop.logs.builder import EPOCH, LogBuilder
from pitstop.logs.numbers import FINITE, convert, number
from pitstop.logs.reader import Reader
from pitstop.logs.rows import Rows
from pitstop.records.logs.windows import APART, Disagreement

NAN = math.nan
_NEVER = re.compile(rb"(?!)")
_SOURCE = "huggingface/transformers: src/transformers/trainer_callback.py"
_KEY = re.compile(rb'^\s*"([\w./-]+)": ("?)([^",\s]+)\2,?\s*$')
_NUMBER = re.compile(rb"^-?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|NaN|Infinity)$")
# A line inside an entry as it is nearly always: what the two patterns above find, in one go.
_VALUE = re.compile(rb'^ *"([\w./-]++)": ' + FINITE + rb",?\Z")
_FORMULA = (
    "whole training: (train_runtime - sum of eval_runtime) / steps; where these are not known, "
    "they are train_runtime x train_steps_per_second"
)


class _Entries:
    """Turns log entries into records; shared by the state and the console."""

    def __init__(self, builder: LogBuilder) -> None:
        self._builder = builder
        self.evaluated_s = 0.0

    def take(self, entry: dict[bytes, bytes], step: float) -> None:
        """Take one entry of the log: names and numbers as printed."""
        builder = self._builder
        if b"loss" in entry:
            # The epoch is a fraction of the way, so a new value is no new epoch.
            builder.brief(step, lr=convert(entry.pop(b"learning_rate", b"nan")))
        elif b"train_runtime" in entry:
            self._whole(entry, step)
        elif any(name.startswith(b"eval_") for name in entry):
            wall_s = number(entry.get(b"eval_runtime", b"nan"))
            self.evaluated_s += 0.0 if math.isnan(wall_s) else wall_s
            epoch = convert(entry.get(b"epoch", b"nan"))
            builder.evaluation(
                step=step, epoch=epoch, wall_s=wall_s, formula="printed: eval_runtime"
            )
        entry.pop(b"step", None)
        entry.pop(b"total_flos", None)
        builder.scalars(step, entry.items())

    def _whole(self, entry: dict[bytes, bytes], step: float) -> None:
        builder = self._builder
        builder.summary(
            EPOCH, step=step, rate=number(entry.get(b"train_samples_per_second", b"nan"))
        )
        for name in (b"train_runtime", b"train_steps_per_second"):
            builder.settings[name.decode()] = entry.get(name, b"nan").decode()
        builder.settings["eval_runtime"] = repr(self.evaluated_s)


class _State:
    """Reads trainer_state.json line by line: it is always written with indentation."""

    def __init__(self, builder: LogBuilder) -> None:
        self._builder = builder
        self._entries = _Entries(builder)
        self._entry: dict[bytes, bytes] | None = None
        self._in_history = False

    def feed(self, line: bytes) -> None:
        """Take one line."""
        if self._entry is not None and (found := _VALUE.match(line)) is not None:
            name, value = found.groups()
            self._entry[name] = value
        elif b'"log_history"' in line:
            self._in_history = True
        elif (found := _KEY.match(line)) is not None:
            self._key(found[1], found[3])
        elif self._in_history and line.strip() == b"{":
            self._entry = {}
        elif self._in_history and line.lstrip().startswith(b"}"):
            self._end()
        elif line.startswith(b"  ]"):
            self._in_history = False

    def _key(self, name: bytes, value: bytes) -> None:
        if not _NUMBER.match(value):
            return
        if self._entry is not None:
            self._entry[name] = value
        elif not self._in_history and value.isdigit() and int(value):
            self._top(name, int(value))

    def _top(self, name: bytes, value: int) -> None:
        builder = self._builder
        if name == b"max_steps":
            builder.total_steps = value
        elif name == b"num_train_epochs":
            builder.total_epochs = value
        elif name == b"train_batch_size":
            builder.batch_size = value
            builder.batch_size_from = "train_batch_size in the file (of one device)"

    def _end(self) -> None:
        entry, self._entry = self._entry, None
        if entry and b"step" in entry:
            self._entries.take(entry, convert(entry[b"step"]))


_MOST_STUCK = 3
_DICT = re.compile(rb"\{'(?:loss|eval_\w+|train_runtime|grad_norm)': ")
_PAIR = re.compile(rb"'([\w./-]+)': '?(-?[\dni][\w.+-]*)'?[,}]")
# A whole dict of the values that the Trainer prints, with or without the norm: what _PAIR finds in
# it, in one go.
_USUAL = re.compile(
    rb"\{'loss': '?(-?[\dni][\w.+-]*)'?, (?:'grad_norm': '?(-?[\dni][\w.+-]*)'?, )?"
    rb"'learning_rate': '?(\d[\d.]*(?:e-\d+)?)'?, 'epoch': '?(-?[\dni][\w.+-]*)'?\}\Z"
)
# The Trainer's bars have no name; others, of weights or of data, say what they draw before a colon.
_BAR = re.compile(rb"(?:\A|[^:\s\d])\s*+\d{1,3}%\|[^|]{0,512}\|\s+(\d+)/(\d+) \[")
# The same dict with ordinary numbers: with the norm, and without it.
_LOSS = rb"\{'loss': '?" + FINITE + rb"'?, "
_REST = rb"'learning_rate': '?(\d++\.?+\d*+(?:e-\d++)?)'?, 'epoch': '?" + FINITE + rb"'?\}\Z"
_COUNTED = (
    (
        re.compile(_LOSS + rb"'grad_norm': '?" + FINITE + rb"'?, " + _REST),
        Layout(step=-1, lr=2, curves=((b"loss", 0), (b"grad_norm", 1), (b"epoch", 3))),
    ),
    (
        re.compile(_LOSS + _REST),
        Layout(step=-1, lr=1, curves=((b"loss", 0), (b"epoch", 2))),
    ),
)


class _Console:
    """Reads dicts; the step is the bar's count last seen, or else the number of the record."""

    def __init__(self, builder: LogBuilder) -> None:
        self._builder = builder
        self._entries = _Entries(builder)
        self._batch = Batch(builder)
        self._bar_step = NAN
        self._bar_total = 0
        self._has_bar = False
        self._is_bar_known = False
        """Whether a loss or the summary was printed: the bar right before it is the training's."""
        self._usual = _NEVER
        self._stuck = 0
        """Losses in a row that were printed without the bar between them."""
        self._loss_step = NAN

    def feed(self, line: bytes) -> None:
        """Take one line."""
        if (counted := self._usual.match(line)) is not None:
            self._batch.add(counted.groups())
        elif b"{'" in line or b"%|" in line:
            self._batch.flush()
            self._any(line)

    def _any(self, line: bytes) -> None:
        if b"%|" in line:
            for found in _BAR.finditer(line):
                self._bar(int(found[1]), int(found[2]))
        place = line.find(b"{'")
        if place < 0 or _DICT.match(line, place) is None:
            return
        found = _USUAL.match(line, place)
        if found is None:
            self._dict(line, place)
        else:
            self._usual_dict(line, found)
            self._expect(line)

    def _expect(self, line: bytes) -> None:
        """Expect more dicts like this one, if their number is their step."""
        for usual, layout in _COUNTED if math.isnan(self._bar_step) else ():
            if usual.match(line) is not None:
                self._usual = usual
                self._batch.set_layout(layout)

    def _bar(self, count: int, total: int) -> None:
        # Evaluations have bars of their own; shorter ones, where the training's is not known yet.
        if total >= self._bar_total or not self._is_bar_known:
            self._bar_step, self._bar_total = float(count), total
            self._usual = _NEVER
            self._builder.total_steps = total if self._builder.is_steps_known else None

    def _usual_dict(self, line: bytes, found: re.Match[bytes]) -> None:
        builder = self._builder
        self._is_bar_known = True
        step = self._step(line, found.start())
        self._watch(step)
        loss, norm, rate, epoch = found.groups()
        # Nearly every record has a rate of its own, so remembering it does not pay.
        builder.brief(step, lr=float(rate))
        if norm is None:
            builder.scalars(step, ((b"loss", loss), (b"epoch", epoch)))
        else:
            builder.scalars(step, ((b"loss", loss), (b"grad_norm", norm), (b"epoch", epoch)))

    def _dict(self, line: bytes, place: int) -> None:
        entry = dict(_PAIR.findall(line, place))
        self._is_bar_known |= b"loss" in entry or b"train_runtime" in entry
        step = self._step(line, place)
        if b"loss" in entry:
            self._watch(step)
        self._entries.take(entry, step)

    def _watch(self, step: float) -> None:
        """Forget the steps where the bar stands elsewhere in the file than the losses."""
        self._stuck = self._stuck + 1 if step == self._loss_step else 0
        self._loss_step = step
        if self._stuck == _MOST_STUCK:
            self._builder.is_steps_known = False
            self._builder.total_steps = None
            self._builder.note(APART)

    def _step(self, line: bytes, place: int) -> float:
        """Give the step of the dict that begins here, and note how it is known."""
        builder = self._builder
        if builder.version is None:
            has_strings = line.find(b": '", place) >= 0
            builder.version = "5.x (strings)" if has_strings else "4.x (numbers)"
        self._batch.counted += 1
        step = self._bar_step
        if math.isnan(step):
            step = float(self._batch.counted)
            if builder.is_steps_known:
                builder.is_steps_known = False
                builder.note("the log gives no steps: curves are over the number of the record")
        elif not self._has_bar:
            self._has_bar = True
            builder.note("the step of a record is the count of the bar printed last before it")
        return step


_FAR_OFF = 0.1


def judge(builder: LogBuilder, rows: Rows) -> list[Disagreement]:
    """Give the record of the whole training its time of a step."""
    if APART in builder.notes:
        rows.raw["rate"][:] = math.nan  # nor is it known from which step on the process trained
        return []
    # Of several trainings in one file the last one's time is known.
    for row in np.flatnonzero(rows.code == EPOCH).tolist()[-1:]:
        runtime = float(builder.settings.get("train_runtime", "nan"))
        evaluated = float(builder.settings.get("eval_runtime", "nan"))
        speed = float(builder.settings.get("train_steps_per_second", "nan"))
        steps = rows.raw["step"][row]
        if builder.is_steps_known and steps > 0:
            rows.step_s[row] = max(runtime - evaluated, 0.0) / steps
            rows.first[row] = 1
            if abs(speed * runtime / steps - 1) > _FAR_OFF:
                rows.raw["rate"][row] = math.nan
                builder.note(
                    f"the printed rates are of {speed * runtime:.0f} steps, announced but not "
                    f"done: {steps:.0f} were, so they are left out"
                )
        elif speed > 0 and runtime > 0:
            rows.step_s[row] = max(runtime - evaluated, 0.0) / (speed * runtime)
    steps = rows.raw["step"]
    if (np.diff(steps[np.isfinite(steps)]) < 0).any():
        builder.note("steps go back: train_runtime is of the last process only")
    return []


HF_STATE = Reader(
    name="Hugging Face trainer_state.json",
    defined_by=f"{_SOURCE} (TrainerState)",
    start=lambda builder: _State(builder).feed,
    needle=b'"',
    mark=re.compile(
        rb'^  "(?:best_metric|best_model_checkpoint|global_step|is_hyper_param_search|log_history'
        rb'|max_steps|num_train_epochs|total_flos)": '
    ),
    rebuild=_FORMULA,
    scalars="window mean",
    rate="total",
    judge=judge,
    notes=("the file has no time of single records",),
)
HF_CONSOLE = Reader(
    name="Hugging Face console",
    defined_by=f"{_SOURCE} (PrinterCallback, ProgressCallback)",
    start=lambda builder: _Console(builder).feed,
    needle=b"{'",
    mark=re.compile(_DICT.pattern + rb"[^{}]*'epoch': "),  # others print dicts with a loss too
    rebuild=_FORMULA,
    scalars="window mean",
    rate="total",
    judge=judge,
    notes=("the dicts have no time of single records",),
)
READERS = (HF_STATE, HF_CONSOLE)
