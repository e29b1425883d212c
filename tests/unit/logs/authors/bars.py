"""Authors who draw bars: one for the run or one an epoch, and often one of an evaluation."""

import random
from dataclasses import replace

from tests.unit.logs.authors.run import Record, Run, Truth, clock_text, draw_run, simulate


def bars_of(seed: int) -> tuple[list[str], Truth]:
    """Draw a bar an epoch, and often one of an evaluation."""
    draw = random.Random(seed)
    truth = Truth(seed, counts="epoch", is_coarse=True)
    run = draw_run(draw)
    shape = draw.randrange(5)
    is_one, is_hasty = draw.random() < 0.2, draw.random() < 0.2
    # Hasty: the last drawing of a bar is often missing.
    evaluates = draw.choice(["", "Val", "Validating", "Evaluating", "test"])
    between = draw.choice(["\r", "\n"])
    postfix = draw.choice(["loss", "loss lr"] if is_one else ["", "loss", "loss lr"])
    drawn: list[str] = []
    last: Record | None = None
    furthest = 0
    for event in simulate(run, draw, truth):
        if isinstance(event, Record):
            last = event
            drawn.append(_bar(run, event, shape, postfix, is_one=is_one))
            continue
        what, *numbers = event.split()
        if what == "begin" and int(numbers[0]) and run.restart != "scratch":
            drawn.append(f"resuming from checkpoint, epoch {numbers[1]}\n")
        if what == "evaluated" and not is_one and last is not None:
            end = last.inside
            if not is_hasty or not last.epoch or draw.random() < 0.5:
                end = run.per_epoch
                drawn.append(_full(run, last, shape, postfix) + "\n")
            furthest = max(furthest, last.epoch * run.per_epoch + end)
            if evaluates and run.evaluation_s:
                spent = run.evaluation_s
                drawn += [
                    _drawn(
                        f"{evaluates}: ", n, 12, spent * n / 12, spent * (1 - n / 12), 12 / spent
                    )
                    for n in range(13)
                ]
            drawn.append(f"Epoch {last.epoch + 1}: train loss {last.loss:.4f} val loss 0.7\n")
    assert last is not None
    text = "".join(one if one.endswith("\n") else one + between for one in drawn)
    truth.last_step = last.step if is_one else furthest
    truth.is_from_zero = False
    truth.total_steps = run.total
    truth.holds.add("losses")
    if is_one:
        truth.counts, truth.holds = "run", {"losses"} if postfix else set()
    truth.hidden_s = (run.start_s + is_one * run.evaluation_s) / run.per_epoch
    return text.split("\n"), truth


def _full(run: Run, last: Record, shape: int, postfix: str) -> str:
    spent = last.epoch_s + (run.per_epoch - last.inside) * run.step_s
    full = Record(**{**{name: getattr(last, name) for name in Record.__slots__},
                     "inside": run.per_epoch, "epoch_s": spent})  # fmt: skip
    return _bar(run, full, shape, postfix, is_one=False)


def _bar(run: Run, record: Record, shape: int, postfix: str, *, is_one: bool) -> str:
    more = (f", loss={record.loss:.3f}" if "loss" in postfix else "") + (
        ", lr=0.001" if "lr" in postfix else ""
    )
    number = record.epoch + 1
    head = (f"Epoch {number}/{run.epochs}: ", f"Epoch {number}: ", "", "Training: ",
            f"Train [{number}/{run.epochs}]: ")[shape]  # fmt: skip
    done, total, spent = record.inside, run.per_epoch, record.epoch_s
    if is_one:
        head, done, total, spent = "", record.step, run.total, record.run_s
    rate = done / spent
    return _drawn(head, done, total, spent, (total - done) / rate, rate, more)


def _drawn(
    head: str, done: int, total: int, spent: float, left: float, rate: float, more: str = ""
) -> str:
    speed = f"{rate:.2f}it/s" if rate >= 1 else f"{1 / rate:.2f}s/it"
    return (
        f"{head}{100 * done // total:3}%|{'█' * (10 * done // total):10}| {done}/{total} "
        f"[{clock_text(spent)}<{clock_text(left)}, {speed}{more}]"
    )


def epoch_bars_of(seed: int) -> tuple[list[str], Truth]:
    """Draw a bar without a name that counts epochs, beside a line for each."""
    draw, truth = random.Random(seed), Truth(seed, counts="epochs", is_coarse=True)
    run = replace(draw_run(draw), epochs=draw.randint(5, 9), restart="")
    run = replace(run, done_epochs=draw.choice([run.epochs, run.epochs - 1]))
    first = draw.choice([0, 1])
    lines: list[str] = []
    last: Record | None = None
    for event in simulate(run, draw, truth):
        if isinstance(event, Record):
            last = event
        elif event.startswith("evaluated") and last is not None:
            done, spent = last.epoch + 1, last.run_s
            left = (run.epochs - done) * spent / done
            lines.append(_drawn("", done, run.epochs, spent, left, done / spent))
            lines.append(f"epoch: {last.epoch + first}, loss: {last.loss:.5f}, loss_a: 0.1")
    truth.holds.add("losses")
    return lines, truth
