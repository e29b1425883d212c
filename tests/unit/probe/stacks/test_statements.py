"""What a line of a training loop is for: loss, data or neither, by the names in it."""

import linecache
from pathlib import Path

import pytest

from pitstop_probe.stacks.statements import CALLS_MODEL, DATA, HOST, LOSS, Flow, statements_of


def purposes(path: Path, text: str) -> dict[str, str | None]:
    """Give the purpose of each line that ends in a comment, by that comment."""
    path.write_text(text, encoding="utf-8")
    linecache.clearcache()
    lines = text.splitlines()
    calls = [n for n, line in enumerate(lines, 1) if line.endswith("# model")]
    flow = Flow(statements_of(str(path), "<module>", 1), calls)
    return {
        line.rpartition("# ")[2]: flow.purpose_at(n)
        for n, line in enumerate(lines, 1)
        if "# " in line
    }


PREFETCH = """
x, y = get_batch()
for step in range(9):
    lr = rate(step)  # rate
    with autocast():
        logits = model(x)  # model
        loss = cross_entropy(logits, y)  # loss
        shown = loss.item()  # item
    x, y = get_batch()  # batch
    log("loss", loss)  # log
    scaler.scale(
        loss,
        # inside
    ).backward()
"""


def test_what_makes_the_next_batch_is_told_from_what_computes_the_loss(tmp_path: Path) -> None:
    assert purposes(tmp_path / "script.py", PREFETCH) == {
        "model": CALLS_MODEL,
        "loss": LOSS,
        "rate": HOST,
        "item": HOST,
        "batch": DATA,
        "log": HOST,
        "inside": LOSS,
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = load()  # a\nx = x.to(device)  # b\nout = model(x)  # model", {"a": DATA, "b": DATA}),
        ("out = model(x)  # model\nlosses.append(mse(out, y))  # a", {"a": LOSS}),
        ("out = model(x)  # model\naccuracy = (out.argmax(1) == y).float()  # a", {"a": HOST}),
        ("out = model(s)  # model\na = out.argmax().item()\ns, r = env.step(a)  # a", {"a": HOST}),
        ("self.out = model(x)  # model\nself.loss = mse(self.out)  # a", {"a": LOSS}),
        ("out = model(x)  # model\nout = fresh()  # a\nz = f(out)  # b", {"a": HOST, "b": HOST}),
        ("t0 = now(); x, y = get_batch(); t1 = now()  # a\nmodel(x)  # model", {"a": DATA}),
        ("buffer.copy_(load())  # a\nout = model(buffer)  # model", {"a": DATA}),
        ("out = model(x)  # model\ntotal += out.mean()  # a\nif total > 3: stop()", {"a": LOSS}),
        ("def f():\n    x = 1\nout = model(x)  # model\nn = len(out)  # a", {"a": HOST}),
        ("try:\n    x = load()  # a\nfinally:\n    out = model(x)  # model", {"a": DATA}),
    ],
)
def test_a_line(tmp_path: Path, text: str, expected: dict[str, str]) -> None:
    found = purposes(tmp_path / "script.py", text)
    assert {name: found[name] for name in expected} == expected


def test_the_statements_of_a_function_are_its_own(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text("x = 1\n\n@wraps\ndef step(x):\n    y = x\n    return y\n", encoding="utf-8")
    assert [one.first for one in statements_of(str(path), "step", 3)] == [5, 6]
    assert statements_of(str(path), "other", 3) == []


def test_what_cannot_be_read_tells_nothing(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("x = (", encoding="utf-8")
    assert statements_of(str(broken), "<module>", 1) == []
    assert statements_of("<string>", "<module>", 1) == []
