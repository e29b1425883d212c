"""Pictures of a run: an index that never leads out of its folder, and files taken as they are."""

import os
from pathlib import Path

import pytest

from pitstop.errors import RecordError
from pitstop.records.pictures import (
    PictureCell,
    PictureRow,
    Pictures,
    picture_bytes,
    read_pictures,
    write_pictures,
)

PNG = b"\x89PNG\r\n\x1a\n" + b"the rest of it"


def pictures(*files: str) -> Pictures:
    cells = tuple(PictureCell(caption=f"number {n}", file=file) for n, file in enumerate(files))
    return Pictures(rows=(PictureRow(title="街道 clip 3, frame 7", cells=cells, note="31.2 dB"),))


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    written = pictures("a.png", "b.JPG", "c.jpeg")
    write_pictures(tmp_path / "run", written)
    assert read_pictures(tmp_path / "run") == written


def test_a_run_without_pictures_has_none(tmp_path: Path) -> None:
    assert read_pictures(tmp_path) is None


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../secret.png", "/etc/a.png", "a/b.png", "..\\a.png", "c:a.png"]
)
def test_a_name_that_leads_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="plain name"):
        PictureCell(caption="", file=name)


def test_an_index_that_leads_elsewhere_is_damage(tmp_path: Path) -> None:
    write_pictures(tmp_path, pictures("a.png"))
    index = tmp_path / "pictures" / "pictures.json"
    index.write_text(index.read_text().replace('"a.png"', '"../a.png"'))
    with pytest.raises(RecordError, match="plain name"):
        read_pictures(tmp_path)


@pytest.mark.parametrize("name", ["a.svg", "a.html", "a", "png"])
def test_only_png_and_jpeg_are_pictures(name: str) -> None:
    with pytest.raises(ValueError, match=r"a picture is a \.png"):
        PictureCell(caption="", file=name)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"kind":"Pictures","schema":99,"rows":[]}', '{"kind":"Pictures","schema":1}'],
)
def test_a_damaged_index_is_said(tmp_path: Path, text: str) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "pictures.json").write_text(text)
    with pytest.raises(RecordError):
        read_pictures(tmp_path)


def test_an_index_that_is_no_text_is_said(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "pictures.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(RecordError, match="cannot read"):
        read_pictures(tmp_path)


def test_a_file_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.png").write_bytes(PNG)
    assert picture_bytes(tmp_path, PictureCell(caption="", file="a.png")) == PNG


def test_a_file_that_is_missing_or_no_picture_is_said(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "b.png").write_bytes(b"<script>")
    for name, why in (("a.png", "No such file"), ("b.png", "does not hold")):
        with pytest.raises(RecordError, match=why):
            picture_bytes(tmp_path, PictureCell(caption="", file=name))


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "secret.png").write_bytes(PNG)
    (tmp_path / "pictures" / "a.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(RecordError, match="leads out"):
        picture_bytes(tmp_path, PictureCell(caption="", file="a.png"))


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(RecordError, match="cannot write"):
        write_pictures(tmp_path / "run", pictures("a.png"))


def test_a_pipe_in_place_of_a_picture_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    write_pictures(tmp_path, pictures("a.png"))
    os.mkfifo(tmp_path / "pictures" / "a.png")
    with pytest.raises(RecordError, match="is no file"):
        picture_bytes(tmp_path, PictureCell(caption="", file="a.png"))
