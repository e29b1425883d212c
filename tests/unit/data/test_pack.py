"""A pack gives back what went in, says so when it cannot, and is there whole or not at all."""

import json
import os
import pickle
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitstop.data.pack import ALIGNMENT, Pack, PackWriter, beside, is_pack
from pitstop.errors import DataError


def write(path: Path, members: dict[str, bytes | np.ndarray]) -> Path:
    with PackWriter(path, workload="test") as writer:
        for name, data in members.items():
            writer.add(name, "thing", data)
    return path


@settings(max_examples=40, deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=6))
def test_what_comes_out_is_what_went_in(
    tmp_path_factory: pytest.TempPathFactory, contents: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("packs") / "a.pack"
    pack = Pack(write(path, {f"file {at}": data for at, data in enumerate(contents)}))
    assert [pack.content(f"file {at}").tobytes() for at in range(len(contents))] == contents
    assert all(member.offset % ALIGNMENT == 0 for member in pack.members.values())
    assert list(pack.damaged()) == []
    assert pack.workload == "test"


def test_pixels_keep_their_shape_and_cannot_be_written_to(tmp_path: Path) -> None:
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    turned = pixels[:, ::-1]
    pack = Pack(write(tmp_path / "a.pack", {"x": pixels, "y": turned, "é/ü": b"1"}))
    np.testing.assert_array_equal(pack.content("x"), pixels)
    np.testing.assert_array_equal(pack.content("y"), turned)
    assert pack.content("é/ü").tobytes() == b"1"
    with pytest.raises(ValueError, match="read-only"):
        pack.content("x")[0, 0, 0] = 1


def test_only_a_whole_pack_appears(tmp_path: Path) -> None:
    path = tmp_path / "a.pack"

    def stop() -> None:
        with PackWriter(path, workload="test") as writer:
            writer.add("a", "thing", b"123")
            assert not path.exists()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match="No space left on device; nothing was left behind"):
        write(tmp_path / "a.pack", {"a": b"123"})
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_already_is_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "a.pack", {"a": b"123"})
    with pytest.raises(DataError, match="is there already"):
        write(path, {"a": b"other"})
    assert Pack(path).content("a").tobytes() == b"123"


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot write .*/nowhere/a\.pack: No such file"):
        write(tmp_path / "nowhere" / "a.pack", {})


def test_the_same_name_twice_is_refused(tmp_path: Path) -> None:
    with PackWriter(tmp_path / "a.pack", workload="test") as writer:
        writer.add("a", "thing", b"1")
        with pytest.raises(DataError, match="cannot be packed twice"):
            writer.add("a", "thing", b"2")
    assert Pack(tmp_path / "a.pack").content("a").tobytes() == b"1"


def test_every_damaged_byte_is_noticed_and_its_member_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.pack", {"a": b"x" * 100, "b": b"y" * 100})
    whole = path.read_bytes()
    members = Pack(path).members
    padding = set(range(len(whole)))
    for name, member in members.items():
        for at in range(member.offset, member.offset + member.size_bytes):
            padding.discard(at)
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            assert list(Pack(path).damaged()) == [name]
    ends = [member.offset + member.size_bytes for member in members.values()]
    gaps = {at for end in ends for at in range(end, end + -end % ALIGNMENT)}
    for at in padding - gaps:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(DataError, match=r"damaged|not a pack|version|cut off"):
            Pack(path)


def test_a_pack_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.pack", {"a": b"x" * 50})
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"cut off|not a pack"):
            Pack(path)


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.pack", {"a": b"1"})
    whole = bytearray(path.read_bytes())
    whole[8:12] = struct.pack("<I", 2)
    whole[60:64] = struct.pack("<I", zlib.crc32(bytes(whole[:60])))
    path.write_bytes(whole)
    with pytest.raises(DataError, match="has version 2; this pitstop reads up to 1"):
        Pack(path)


def test_a_member_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.pack has no member b"):
        Pack(write(tmp_path / "a.pack", {"a": b"1"})).content("b")


def test_a_pack_travels_as_its_path(tmp_path: Path) -> None:
    pack = Pack(write(tmp_path / "a.pack", {str(at): b"1" * 1000 for at in range(100)}))
    sent = pickle.dumps(pack)
    assert len(sent) < 1_000
    assert pickle.loads(sent).content("7").tobytes() == b"1" * 1000


def test_a_pack_that_was_replaced_meanwhile_is_not_mixed_up(tmp_path: Path) -> None:
    path = tmp_path / "a.pack"
    sent = pickle.dumps(Pack(write(path, {"a": b"1"})))
    path.unlink()
    write(path, {"a": b"2"})
    with pytest.raises(DataError, match="was replaced by another pack"):
        pickle.loads(sent)


def forged(path: Path, index: object, *, where: int | None = None) -> Path:
    """Write a pack of one member with another index, and the sums that go with it."""
    whole = write(path, {"a/b": b"12345678"}).read_bytes()
    head = struct.Struct("<8sIIQQQ20xI")
    offset = head.unpack(whole[: head.size])[3]
    text = index if isinstance(index, bytes) else json.dumps(index).encode()
    body = whole[:offset] + text
    place = offset if where is None else where
    facts = (whole[:8], 1, zlib.crc32(body[place : place + len(text)]), place, len(text), len(body))
    unsigned = head.pack(*facts, 0)[:-4]
    path.write_bytes(head.pack(*facts, zlib.crc32(unsigned)) + body[head.size :])
    return path


def row(**changes: object) -> list[object]:
    sound = {"name": "a/b", "field": "f", "offset": 64, "size": 8, "crc": 1, "shape": [2, 4]}
    return list((sound | changes).values())


def test_an_index_in_the_same_shape_is_read(tmp_path: Path) -> None:
    pack = Pack(forged(tmp_path / "a.pack", {"workload": "x", "members": [row()]}))
    assert pack.content("a/b").shape == (2, 4)


@pytest.mark.parametrize(
    "members",
    [
        None,
        5,
        {"a": 1},
        [5],
        [[]],
        [[*row(), 1]],
        [row(), row()],
        [row(name=5)],
        [row(name="")],
        [row(name="../../etc/passwd")],
        [row(name="/etc/passwd")],
        [row(name="a//b")],
        [row(name="a\0b")],
        [row(field=None)],
        [row(offset=-8)],
        [row(offset=0)],
        [row(offset=2**70)],
        [row(offset=64.5)],
        [row(offset=True)],
        [row(size=-1)],
        [row(size=2**62, shape=None)],
        [row(crc=-1)],
        [row(crc="1")],
        [row(shape=[2, 5])],
        [row(shape=[])],
        [row(shape=[-2, -4])],
        [row(shape=[2.0, 4])],
        [row(shape=8)],
        [row(shape="24")],
        [row(shape=[1] * 40 + [8])],
    ],
    ids=repr,
)
def test_an_index_that_no_pack_has_is_refused_in_one_sentence(
    tmp_path: Path, members: object
) -> None:
    path = forged(tmp_path / "a.pack", {"workload": "x", "members": members})
    with pytest.raises(DataError, match=r"an index that no pack has: .*pack the dataset again"):
        Pack(path)


@pytest.mark.parametrize(
    "index", [b"", b"5", b"null", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"workload":5}', b"NaN"]
)
def test_an_index_that_is_no_json_of_ours_is_refused(tmp_path: Path, index: bytes) -> None:
    with pytest.raises(DataError, match="an index that no pack has"):
        Pack(forged(tmp_path / "a.pack", index))


@pytest.mark.parametrize("where", [0, 2**40, 2**63])
def test_an_index_outside_the_file_is_refused(tmp_path: Path, where: int) -> None:
    with pytest.raises(DataError, match="index"):
        Pack(forged(tmp_path / "a.pack", {"workload": "x", "members": []}, where=where))


@pytest.mark.skipif(sys.platform == "win32", reason="has no named pipes in folders")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.pack")
    assert not is_pack(tmp_path / "a.pack")
    with pytest.raises(DataError, match="not a regular file"):
        Pack(tmp_path / "a.pack")


def test_packs_are_told_from_other_files(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("run: {}\n")
    assert not is_pack(other)
    assert not is_pack(tmp_path)
    assert not is_pack(tmp_path / "nowhere")
    assert is_pack(write(tmp_path / "a.pack", {}))
    with pytest.raises(DataError, match="is not a pack"):
        Pack(other)
    with pytest.raises(DataError, match="cannot read"):
        Pack(tmp_path / "nowhere")


def test_a_pack_lies_beside_its_dataset(tmp_path: Path) -> None:
    assert beside(tmp_path / "clips") == tmp_path / "clips.pack"
    assert beside(Path("data/clips/")) == Path("data/clips.pack")
    assert beside(Path()) == Path.cwd().with_name(f"{Path.cwd().name}.pack")
