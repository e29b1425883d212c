"""Authors who print rows of a table, or a few lines an epoch."""

import json
import random
from dataclasses import dataclass, replace
from itertools import pairwise

from tests.unit.logs.authors.run import CLOCKS, Record, Run, Truth, draw_run, simulate, stamp


@dataclass(frozen=True, slots=True)
class _Table:
    """How an author's rows look."""

    run: Run
    kind: str
    step: str
    """Name of the counter; empty where rows are of epochs."""
    loss: str
    clock: str
    has_fractions: bool

    def row(self, record: Record) -> dict[str, object]:
        """Name what stands in one row."""
        done = record.epoch + record.inside / self.run.per_epoch
        found: dict[str, object] = {}
        if self.step:
            found[self.step] = record.step - self.run.prints_first
        found |= {
            "epoch": round(done, 2) if self.has_fractions else record.epoch + 1,
            self.loss: round(record.loss, 4),
            "lr": round(1e-3 / (1 + record.step), 7),
        }
        times: dict[str, object] = {
            "elapsed_s": round(record.run_s, 2),
            "time": round(record.last_s, 4),
            "timestamp": stamp("%Y-%m-%d %H:%M:%S", record.at_s),
        }
        return found | {name: value for name, value in times.items() if name == self.clock}

    def printed(self, found: dict[str, object], *, is_first: bool) -> str:
        """Print a row, the first of a CSV file with its head."""
        if self.kind == "json":
            return json.dumps(found)
        if self.kind == "dict":
            return str(found)
        head = ",".join(found) + "\n" if is_first else ""
        return head + ",".join(map(str, found.values()))


def table_of(seed: int) -> tuple[list[str], Truth]:
    """Print a whole run as CSV, lines of JSON or dictionaries: a row a record or one an epoch."""
    draw, truth = random.Random(seed), Truth(seed)
    run = draw_run(draw)
    step = draw.choice(["step", "iter", "global_step", "iteration", "", ""])
    table = _Table(
        run=run,
        kind=draw.choice(["csv", "json", "dict"]),
        step=step,
        loss=draw.choice(["loss", "train_loss", "train/loss"]),
        clock=draw.choice(["", "elapsed_s", "time", "timestamp"]),
        has_fractions=bool(step) and draw.random() < 0.3,
    )
    lines: list[str] = []
    last: Record | None = None
    for event in simulate(run, draw, truth):
        if isinstance(event, Record):
            last = event
        is_row = isinstance(event, Record) if step else str(event).startswith("evaluated")
        if is_row and last is not None:
            more = {} if step else {"val_loss": 0.3, "val_acc": round(0.8 + last.epoch / 100, 2)}
            lines.append(table.printed(table.row(last) | more, is_first=not lines))
    assert last is not None
    truth.last_step, truth.total_steps = last.step - run.prints_first, run.total
    truth.counts, truth.is_from_zero = "run" if step else "epochs", run.prints_first
    truth.is_coarse = True
    if run.restart == "next" or any(one == two for one, two in pairwise(lines)):
        truth.processes = 1  # rows go on as if nothing had been, or one seems printed twice
    truth.holds |= {"losses", "learning rate"}
    truth.hidden_s = (run.start_s + run.evaluation_s) / run.per_epoch
    return lines, truth


def epochs_of(seed: int) -> tuple[list[str], Truth]:
    """Print one line or a few an epoch, and nothing of steps."""
    draw, truth = random.Random(seed), Truth(seed, counts="epochs")
    run = replace(draw_run(draw), epochs=draw.randint(6, 12), done_epochs=draw.randint(5, 6))
    clock = draw.choice(["", "", *CLOCKS])
    shape, first, took = draw.randrange(9), draw.choice([0, 1]), draw.choice(["", "time", "took"])
    has_rate = draw.random() < 0.5
    lines: list[str] = []
    last: Record | None = None
    opened = 0.0
    for event in simulate(run, draw, truth):
        if isinstance(event, Record):
            last = event
            continue
        what, *numbers = event.split()
        at = float(numbers[-1])
        head = stamp(clock, at) if clock else ""
        if what == "begin" and int(numbers[0]) and run.restart != "scratch":
            lines.append(f"{head}resuming from checkpoint, epoch {numbers[1]}")
        elif what == "epoch":
            opened = at
        elif what == "evaluated" and last is not None:
            number = int(numbers[0]) + first
            rate = f" lr {1e-3 / max(number, 1):.2e}" if has_rate else ""
            spent = f" {took}: {at - opened:.1f}s" if took else ""
            said = _of_epoch(shape, number, run.epochs, last.loss, rate, spent)
            lines += [head + line for line in said]
    truth.holds |= {"losses"} | ({"learning rate"} if has_rate else set())
    truth.holds |= {"timestamps"} if clock else set()
    return lines, truth


def _of_epoch(
    shape: int, number: int, epochs: int, loss: float, rate: str, spent: str
) -> list[str]:
    """Say how one epoch went; the last shape does not name what it counts."""
    of = f"{number}/{epochs}"
    val = f"{2 * loss:.4f}"
    if shape < 2:
        return [f"Epoch {of}{rate} train_loss: {loss:.4f} val_loss: {val}{spent}"]
    if shape < 4:
        return [f"Epoch: {number} | Train Loss: {loss:.3f} | Acc: {90 - loss:.2f}%{spent}{rate}"]
    if shape < 6:
        return [f"Epoch {of}", f"train loss {loss:.4f}{rate}{spent}", f"val loss {val} acc 0.8"]
    if shape < 8:
        train = f"epoch {number} train loss {loss:.4f}{rate}"
        return [train, f"epoch {number} test loss {val}, acc 81.2{spent}"]
    return [f"[{number}] loss={loss:.4f}{rate}, val_acc={1 - loss / 9:.3f}{spent}"]
