"""Tables read piece by piece."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pitstop.errors import DataError
from pitstop.workloads.bev.data import tables
from pitstop.workloads.bev.data.tables import check_tables, each, rows

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
some_rows = st.lists(st.dictionaries(st.text(), values, max_size=4), max_size=6)


@given(some_rows, st.integers(1, 40), st.sampled_from([None, 0, 1]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_rows_are_those_of_the_whole_file_however_it_is_cut(
    tmp_path: Path, wanted: list[dict[str, object]], piece: int, indent: int | None
) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(wanted, indent=indent, ensure_ascii=False), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "_PIECE_CHARS", piece)
        assert list(rows(path)) == wanted


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": 1}', "not a list of rows"),
        ("", "not a list of rows"),
        ('[{"a": 1}, {"a":', "row 2 is not whole"),
        ('[{"a": 1}', "row 2 is not whole"),
        ("[1, 2]", "row 1 is not whole"),
    ],
)
def test_a_damaged_table_is_named_with_the_row(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "sample.json"
    path.write_text(text)
    with pytest.raises(DataError, match=words) as caught:
        list(rows(path))
    assert str(path) in str(caught.value)


def test_bytes_that_are_no_text_and_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    path = tmp_path / "sample.json"
    with pytest.raises(DataError, match="cannot read"):
        list(rows(path))
    path.write_bytes(b'[{"a": "\xff"}]')
    with pytest.raises(DataError, match="not UTF-8"):
        list(rows(path))


def test_a_row_without_a_field_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text('[{"token": "a", "n": 1}, {"token": "b"}]')
    with pytest.raises(DataError, match="row 2 has no 'n'"):
        list(each(path, lambda row: row["n"]))
    with pytest.raises(DataError, match="row 1 cannot be used"):
        list(each(path, lambda row: int(row["token"])))


def test_a_missing_set_version_or_table_is_named(own_root: Path) -> None:
    with pytest.raises(DataError, match="there is no folder"):
        check_tables(own_root / "nowhere", "v1.0-mini")
    with pytest.raises(DataError, match=r"no version v1\.0-trainval .*it has v1\.0-mini"):
        check_tables(own_root, "v1.0-trainval")
    (own_root / "v1.0-mini" / "visibility.json").unlink()
    with pytest.raises(DataError, match=r"lacks visibility\.json"):
        check_tables(own_root, "v1.0-mini")


@pytest.mark.parametrize("value", ["[" * 100_000, "9" * 5_000 + "}]"], ids=["nested", "long"])
def test_json_that_python_gives_up_on_is_said_in_one_line(tmp_path: Path, value: str) -> None:
    path = tmp_path / "log.json"
    path.write_text('[{"token": ' + value)
    with pytest.raises(DataError, match=r"log\.json is damaged") as caught:
        list(rows(path))
    assert "\n" not in str(caught.value)
