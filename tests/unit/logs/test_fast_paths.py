"""Lines of the usual shape are read in a faster way; what comes of them is the same."""

import re
import struct
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from random import Random
from types import ModuleType
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pitstop.logs import batch, builder, finish, read
from pitstop.logs.builder import LogBuilder
from pitstop.logs.formats import huggingface, kair, llm, meters, tables, tensorboard
from pitstop.logs.reader import Reader
from pitstop.records.logs.windows import COLUMNS
from pitstop.records.run import RankRecord

NEVER = re.compile(rb"(?!)")
NO_NUMBER = rb"((?!))"
ODD = ("nan", "inf", "-inf", "-1e999", "1_0", "1.2.3", "5.", ".5", "1e", "1e-", "-", "", "-0.5")
ODD_STEPS = ("9" * 15, "9" * 16, "9" * 400, "1,000", "", "3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """A quick way of one reader, and how to close it."""

    reader: Reader
    shapes: tuple[str, ...]
    """Lines with a step and up to five numbers."""
    closed: tuple[tuple[ModuleType, str, object], ...]


STATE = """    {{
      "epoch": {1},
      "learning_rate": {2},
      "loss": {3},
      "step": {0}
    }},"""
PATHS = {
    "csv": Path(
        reader=tables.CSV,
        shapes=(
            "1,{0},,{1},,",
            "{5},{0},,{1},{2},",
            "2,{0},,{1},,{2}",
            "2,{0},,,,{3}",
            ",{0},{1},,,",
            '1,{0},,"{1}",,',
            "{1},{0},,{2},{3},{4}",
            "step,lr,loss",
            "epoch,step,lr,train_loss,a,b",
            "a line, and another",
        ),
        closed=((tables, "FINITE", NO_NUMBER),),
    ),
    "nanoGPT": Path(
        reader=llm.NANOGPT,
        shapes=(
            "iter {0}: loss {1}, time {2}ms, mfu {3}%",
            "iter {0}: loss {1}, time {2}ms, mfu -100.00%",
            "iter {0}: loss {1}, time {2}ms",
            "step {0}: train loss {1}, val loss {2}",
            "saving checkpoint to out",
            "Resuming training from out",
        ),
        closed=((llm, "_ITER_USUAL", NEVER),),
    ),
    "torchtitan": Path(
        reader=llm.TORCHTITAN,
        shapes=(
            "[titan] 2024-03-05 10:00:0{5},123 - root - INFO - step: {0}  loss:  {1}  grad_norm:  "
            "{2}  memory: 47.52GiB(50.02%)  tps: 6,250  tflops: {3}  mfu: {4}%",
            "[titan] 2024-03-05 10:00:0{5},123 - root - INFO - validate step: {0}  loss:  {1}  x",
        ),
        closed=((llm, "_TITAN_USUAL", NEVER),),
    ),
    "console": Path(
        reader=huggingface.HF_CONSOLE,
        shapes=(
            "{{'loss': {1}, 'grad_norm': {2}, 'learning_rate': {3}, 'epoch': {4}}}",
            "{{'loss': '{1}', 'grad_norm': '{2}', 'learning_rate': '{3}', 'epoch': '{4}'}}",
            "{{'loss': {1}, 'learning_rate': {3}, 'epoch': {4}}}",
            "{{'eval_loss': {1}, 'eval_runtime': {2}, 'epoch': {4}}}",
            "  5%|5    | {0}/400 [00:10<01:00, 5.00it/s]",
        ),
        closed=((huggingface, "_COUNTED", ()), (huggingface, "_USUAL", NEVER)),
    ),
    "state": Path(
        reader=huggingface.HF_STATE,
        shapes=(STATE, STATE.replace('"loss"', '"eval_loss"')),
        closed=((huggingface, "_VALUE", NEVER),),
    ),
    "KAIR": Path(
        reader=kair.KAIR,
        shapes=(
            "24-03-05 10:00:0{5}.250 : <epoch:  0, iter:{0:>8}, lr:{1}> G_loss: {2} ",
            "24-03-05 10:00:0{5}.250 : <epoch:  0, iter:{0:>8}, Average PSNR : {1}dB",
        ),
        closed=((kair, "_USUAL", NEVER),),
    ),
    "torchreid": Path(
        reader=meters.TORCHREID,
        shapes=(
            "epoch: [1/60][{0}/400]\ttime {1} ({2})\tdata 0.000 (0.301)\teta 5:36:41\tloss {3} "
            "({4})\tlr {1}",
            "epoch: [1/60][{0}/400]\ttime {1} ({2})\tdata 0.000 (0.301)\teta 5:36:41\tloss ({4})",
        ),
        closed=((meters, "_LEFT", NEVER), (finish, "_is_fine", lambda _: False)),
    ),
}  # fmt: skip

HEADS = {"csv": ["epoch,step,test_loss,train_loss,lr,val_loss"], "state": ['  "log_history": [']}


def small(stack: ExitStack) -> None:
    """Let few records be very many, so that joining and thinning happen."""
    for module, name, value in (
        (builder, "_MOST_ROWS", 12),
        (builder, "_MOST_POINTS", 9),
        (builder, "_MOST_HELD", 4),
        (batch, "_MOST", 5),
    ):
        stack.enter_context(patch.object(module, name, value))


def read_lines(
    reader: Reader, lines: Sequence[bytes], closed: Sequence[tuple[ModuleType, str, object]]
) -> RankRecord:
    with ExitStack() as stack:
        small(stack)
        for module, name, value in closed:
            stack.enter_context(patch.object(module, name, value))
        found = LogBuilder(is_rebuilt=bool(reader.rebuild))
        feed = reader.start(found)
        read.feed_portion(lines, b"", feed, found)
        found.close()
        return finish.finish(found, reader, confidence=1.0, file="a.log")


def facts(rank: RankRecord) -> dict[str, object]:
    """All that a record says, comparable byte by byte."""
    table = rank.windows
    assert table is not None
    columns: dict[str, object] = {name: getattr(table, name).tobytes() for name in COLUMNS}
    curves = {
        name: (series.step.tobytes(), series.value.tobytes())
        for name, series in rank.scalars.items()
    }
    return columns | {
        "kind": table.kind.tolist(),
        "curves": curves,
        "events": rank.events,
        "log": repr(table.log),
        "attempts": rank.attempts,
    }


def number(chance: Random) -> str:
    """A number as logs print them, now and then one that is too large."""
    texts = (f"{chance.random() * 10:.4f}", repr(chance.random() / 1e4), "7", "1e999")
    return chance.choices(texts, (8, 2, 2, 1))[0]


def some_lines(chance: Random, shapes: tuple[str, ...]) -> list[bytes]:
    """Lines mostly of one shape with ordinary numbers and steps that go on, and others among."""
    lines: list[bytes] = []
    usual, step = chance.choice((shapes[0], *shapes)), 0
    for _ in range(chance.randrange(60)):
        step += chance.randrange(1, 4)
        shape, where, values = usual, str(step), [number(chance) for _ in range(4)]
        if not chance.randrange(6):
            shape, where = chance.choice(shapes), chance.choice((where, *ODD_STEPS))
            values = [chance.choice((value, *ODD)) for value in values]
        text = shape.format(where, *values, chance.randrange(10))
        lines += text.encode().split(b"\n")
    return lines


@pytest.mark.parametrize("name", PATHS)
def test_the_quick_way_gives_what_the_long_way_gives(name: str) -> None:
    path = PATHS[name]

    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(seed=st.integers(0, 2**32))
    def check(seed: int) -> None:
        lines = [head.encode() for head in HEADS.get(name, [])]
        lines += some_lines(Random(seed), path.shapes)
        quick = read_lines(path.reader, lines, ())
        long = read_lines(path.reader, lines, path.closed)
        assert facts(quick) == facts(long)

    check()


@pytest.mark.parametrize("name", ["csv", "nanoGPT", "console"])
def test_ordinary_lines_are_taken_many_at_a_time(name: str) -> None:
    path = PATHS[name]
    texts = [path.shapes[0].format(step, f"0.{step}", 1, 2, 3, 1) for step in range(1, 31)]
    lines = [text.encode() for text in [*HEADS.get(name, []), *texts]]
    taken: list[tuple[bytes, ...]] = []
    with patch.object(batch.Batch, "add", lambda _, groups: taken.append(groups)):
        read_lines(path.reader, lines, ())
    assert len(taken) >= 29


def event(tag: bytes, value: float, step: int, wall: float) -> bytes:
    inner = b"\x0a" + bytes((len(tag),)) + tag + b"\x15" + struct.pack("<f", value)
    summary = b"\x0a" + bytes((len(inner),)) + inner
    count = bytearray()
    while step > 0x7F:
        count.append(step & 0x7F | 0x80)
        step >>= 7
    count.append(step)
    head = b"\x09" + struct.pack("<d", wall) + b"\x10" + bytes(count)
    return head + b"\x2a" + bytes((len(summary),)) + summary


def framed(record: bytes) -> bytes:
    length = struct.pack("<Q", len(record))
    crcs = [struct.pack("<I", tensorboard.masked_crc(part)) for part in (length, record)]
    return length + crcs[0] + record + crcs[1]


EVENTS = st.builds(
    event,
    st.sampled_from([b"loss", b"lr", b"train/loss", b"val/loss", b"\xff", b""]),
    st.floats(width=32),
    st.integers(0, 300),
    st.floats(1e9, 2e9),
)


def changed(record: bytes, place: int, byte: int) -> bytes:
    """Another byte at this place: the checksum made of it later is right all the same."""
    place %= len(record)
    return record[:place] + bytes((byte,)) + record[place + 1 :]


CHANGED = st.builds(changed, EVENTS, st.integers(10, 20), st.integers(0, 40))


@given(
    records=st.lists(st.one_of(EVENTS, CHANGED, st.binary(max_size=40)), max_size=40),
    places=st.lists(st.integers(0, 2000), max_size=2),
)
def test_events_of_one_scalar_are_read_as_any_others(
    records: list[bytes], places: list[int]
) -> None:
    data = bytearray(b"".join(map(framed, records)))
    for place in places:
        if place < len(data):
            data[place] ^= 0x55
    found = []
    for closed in ((), ((tensorboard, "_USUAL", NEVER), (tensorboard, "_FEW", 10**9))):
        with ExitStack() as stack:
            for module, name, value in closed:
                stack.enter_context(patch.object(module, name, value))
            events = LogBuilder(is_rebuilt=True)
            tensorboard.TENSORBOARD.start(events)(bytes(data))
            events.close()
            rank = finish.finish(events, tensorboard.TENSORBOARD, confidence=1.0, file="a")
            found.append(facts(rank))
    assert found[0] == found[1]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.integers(1, 40))
def test_checksums_taken_together_are_those_taken_one_by_one(length: int, count: int) -> None:
    records = [bytes((place * 7 + byte) % 256 for byte in range(length)) for place in range(count)]
    together = tensorboard.masked_crcs(records)
    assert together == [tensorboard.masked_crc(record) for record in records]


@given(counts=st.lists(st.integers(0, 30), max_size=8))
def test_points_taken_together_are_thinned_as_those_taken_one_by_one(counts: list[int]) -> None:
    with patch.object(builder, "_MOST_POINTS", 5):
        one, many = builder.Series(), builder.Series()
        begin = 0
        for count in counts:
            steps = np.arange(float(begin), begin + count)
            texts = [b"%d" % step for step in range(begin, begin + count)]
            many.extend(steps, texts)
            for step in steps.tolist():
                one.add(step, step)
            begin += count
    assert (one.step, one.value, one.skip, one.stride) == (
        many.step, many.value, many.skip, many.stride,
    )  # fmt: skip
