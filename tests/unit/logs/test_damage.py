"""Whatever happens to a log's bytes, nothing raises, and no number appears from nowhere."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pitstop.errors import RecordError
from pitstop.logs.read import READERS, read_logs
from pitstop.records.logs.windows import COLUMNS
from pitstop.records.run import RunRecord

CORPUS = Path(__file__).parents[2] / "data" / "logs"
TEXTS = sorted(
    path
    for path in CORPUS.iterdir()
    if not path.name.endswith((".facts.json", ".gz", ".bin")) and "tfevents" not in path.name
)
NUMBER = re.compile(
    rb"(?:(?<![\w.])[-+])?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf)", re.IGNORECASE
)


@st.composite
def damaged(draw: st.DrawFn, paths: list[Path]) -> tuple[str, bytes]:
    path = draw(st.sampled_from(paths))
    data = bytearray(path.read_bytes())
    if data:
        for place in draw(st.lists(st.integers(0, len(data) - 1), max_size=30)):
            data[place] = draw(st.integers(0, 255))
        start, end = sorted(draw(st.tuples(*[st.integers(0, len(data))] * 2)))
        if draw(st.booleans()):
            del data[start:end]
        else:
            data = data[:end]
    return path.name, bytes(data)


def numbers_in(data: bytes) -> set[float]:
    """Every number that stands in the file, found in another way than the readers find them."""
    plain = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", data)
    texts = [plain]
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        texts.append(data.decode("utf-16", "replace").encode())
    found: set[float] = set()
    for text in texts:
        for match in NUMBER.finditer(text):
            token = match[0]
            # A number may begin or end inside a longer token (1,000 or 0.3.5): parts count too.
            found.add(float(token))
            found.update(float(part) for part in re.findall(rb"\d+\.?\d*|\.\d+", token))
        for match in re.finditer(rb"\d[\d,]*\d", text):
            found.add(float(match[0].replace(b",", b"")))
    return found


def read(path: Path, name: str | None = None) -> RunRecord | None:
    message = ""
    try:
        return read_logs([path], format=name)[0]
    except RecordError as error:
        message = str(error)
    assert message
    assert "\n" not in message
    return None


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(damage=damaged(TEXTS))
def test_every_number_stands_in_the_file_or_has_its_formula(
    damage: tuple[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    name, data = damage
    path = tmp_path_factory.mktemp("damage") / name
    path.write_bytes(data)
    run = read(path)
    if run is None:
        return
    table = run.first.windows
    assert table is not None
    present = numbers_in(data)
    for column in COLUMNS:
        note = table.note(column)
        values = getattr(table, column)
        values = values[np.isfinite(values)]
        if len(values) and not note.formula:
            assert note.source == "printed", column
            missing = set(values.tolist()) - present
            assert not missing, (name, column, sorted(missing)[:3])
    for series_name, series in run.first.scalars.items():
        finite = series.value[np.isfinite(series.value)]
        missing = set(finite.tolist()) - present
        assert not missing, (name, series_name, sorted(missing)[:3])
    for event in run.first.events:
        assert event.wall_us == 0 or event.detail["formula"]
    for column in ("step_s", "printed_step_s", "data_s"):
        values = getattr(table, column)
        assert not (values[np.isfinite(values)] < 0).any()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(damage=damaged([path for path in CORPUS.iterdir() if not path.name.endswith(".json")]))
def test_no_reader_raises_on_any_bytes(
    damage: tuple[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    name, data = damage
    path = tmp_path_factory.mktemp("bytes") / name
    path.write_bytes(data)
    for reader in READERS:
        run = read(path, reader.name)
        if run is not None and run.first.windows is not None:
            lengths = {len(getattr(run.first.windows, column)) for column in COLUMNS}
            assert len(lengths) == 1
            assert math.isfinite(run.first.windows.log.confidence)


@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=400))
def test_random_bytes_are_refused_in_one_line_or_read(
    data: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("random") / "run.log"
    path.write_bytes(data)
    read(path)


def test_a_number_in_another_unit_says_how_it_was_printed(tmp_path: Path) -> None:
    line = "2024-01-01 10:{0:02d}:00 step={1} loss=2.{1} data_time_ms=3.10 memory=812MB\n"
    path = tmp_path / "train.log"
    path.write_text("".join(line.format(at, 10 * at) for at in range(1, 30)), encoding="utf-8")
    run = read(path)
    assert run is not None
    table = run.first.windows
    assert table is not None
    assert set(table.data_s[np.isfinite(table.data_s)].tolist()) == {0.0031}
    assert table.note("data_s").formula == "printed as data_time_ms"
    assert not np.isfinite(table.memory_bytes).any() or table.note("memory_bytes").formula


def test_a_step_counted_from_a_damaged_epoch_is_left_out(tmp_path: Path) -> None:
    """Found by the drill: a bar's lines, where the epoch of one record is too long a number."""
    said = "Loss: 6.100, Acc: 0.004, Base Lr: 1.77e-04"
    head = "2021-04-17 13:{}:00,713 reid_baseline.train INFO:"
    done = "Epoch {} done. Time per batch: 88.538[s] Speed: 133.0[samples/s]"
    bar = "\rEpoch[{}] Iteration[184/184] " + said + ":  99%|##########| 184/186 [{},  2.19it/s]"
    lines = [
        f"{head.format(47)} Epoch[1] Iteration[180/184] {said}",
        f"{bar.format(1, '01:28<00:00')}{head.format(48)} {done.format(1)}",
        f"{head.format(51)} Epoch[4] Iteration[40/184] {said}",
        f"{head.format(52)} Epo{'9' * 5000}ch[4] Iteration[100/184] {said}",
        f"{head.format(53)} Epoch[4] Iteration[160/184] {said}",
        f"{head.format(54)} Epoch[4] Iteration[180/184] {said}",
        f"{bar.format(4, '05:54<00:00')}{head.format(55)} {done.format(4)}",
    ]
    log = tmp_path / "train.log"
    log.write_text("\n".join(lines))
    assert read_logs([log])
