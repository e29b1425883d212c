"""The page: complete without a network, escaped, small, and honest about what is not there."""

import html.parser
import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

from pitstop.cli.report import page_of
from pitstop.errors import RecordError
from pitstop.records.pictures import PictureCell, PictureRow, Pictures, write_pictures
from pitstop.records.units import NOT_MEASURED
from pitstop.report.page.html import MOST_BYTES, PageWritten
from tests.browser.records import NASTY, fixed, ranks, slow, write_run

PNG = b"\x89PNG\r\n\x1a\n"
LOGS = Path(__file__).parents[3] / "data" / "logs"
VOID = {"meta", "img", "br", "link", "input", "hr"}


class Outline(html.parser.HTMLParser):
    """Reads a page strictly: every tag is closed where it must be, every id is unique."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.pieces: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == [], self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        if found.get("id"):
            self.ids.append(str(found["id"]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.pieces.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.pieces))


def page(tmp_path: Path, *sources: Path) -> tuple[Outline, PageWritten]:
    output = tmp_path / "report.html"
    written = page_of(sources, output)
    assert output.stat().st_size == written.size_bytes < MOST_BYTES
    outline = Outline(output.read_text(encoding="utf-8"))
    assert len(outline.ids) == len(set(outline.ids)), "an id stands twice"
    return outline, written


def test_everything_a_full_record_holds_is_on_the_page(tmp_path: Path) -> None:
    outline, written = page(tmp_path, slow(tmp_path / "run"))
    assert written.absent == ()
    assert written.sections == (
        "The whole run",
        "What was found",
        "Pictures",
        "The step",
        "Host and device over a few steps",
        "Over time",
        "Memory",
        "GPU, processor and disk",
        "Loader and cache",
        "Parts of the model",
        "Settings, with proof",
        "Machine and versions",
    )
    for text in (
        "the training loop waits for data",
        "DATA001",
        "All pieces together are the wall clock of a step",
        "activations and scratch",
        "Hit rate of the cache",
        "spike_branch",
        "VideoRestorer",
        "optimizer.kind",
        "2.13.0",
        "--config 街道.yaml",
    ):
        assert text in outline.text, text


def test_the_parts_of_the_step_and_what_no_part_saw_add_up_to_the_bar(tmp_path: Path) -> None:
    page_of([slow(tmp_path / "run")], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    drawn = re.search(r'aria-labelledby="step-bar-title.*?</svg></figure>|step-bar-title"', text)
    assert drawn is not None
    bar = text[text.index('id="step-bar-title"') :]
    bar = bar[: bar.index("</figure>")]
    widths = re.findall(r'<rect x="[\d.]+%" width="([\d.]+)%"', bar)
    assert sum(map(float, widths)) == pytest.approx(100, abs=0.1)
    assert "url(#step-bar-hatch)" in bar, "what no part saw is hatched"


def test_words_of_a_record_are_text_and_never_markup(tmp_path: Path) -> None:
    page_of([slow(tmp_path / "run")], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert NASTY not in text
    assert text.count("<script") == 1, "ours alone"
    outline = Outline(text)
    assert NASTY in outline.text


def test_the_page_forbids_the_network_and_names_its_own_script(tmp_path: Path) -> None:
    outline, _ = page(tmp_path, slow(tmp_path / "run"))
    policy = next(
        str(found["content"])
        for tag, found in outline.tags
        if tag == "meta" and found.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert re.search(r"script-src 'sha256-[\w+/=]+'", policy)
    for tag, found in outline.tags:
        assert "style" not in found, f"<{tag} style> is refused by the policy"
        assert not any(name.startswith("on") for name in found), tag
        for name in ("src", "href", "xlink:href"):
            value = found.get(name) or "#"
            assert value.startswith(("#", "data:image/")), value


def test_every_drawing_has_a_title_and_a_description_or_is_decoration(tmp_path: Path) -> None:
    outline, _ = page(tmp_path, slow(tmp_path / "run"))
    drawings = [found for tag, found in outline.tags if tag == "svg" and found.get("role")]
    assert len(drawings) >= 12
    for found in drawings:
        names = str(found["aria-labelledby"]).split()
        assert len(names) == 2
        assert set(names) <= set(outline.ids)


@pytest.mark.parametrize("runs", [1, 3])
def test_tables_say_what_their_headings_head_and_headings_skip_no_level(
    tmp_path: Path, runs: int
) -> None:
    sources = [slow(tmp_path / "a"), fixed(tmp_path / "b"), ranks(tmp_path / "c")]
    outline, _ = page(tmp_path, *sources[:runs])
    tags = [tag for tag, _ in outline.tags]
    assert tags.count("table") == tags.count("caption") == tags.count("thead") > 0
    scopes = {found.get("scope") for tag, found in outline.tags if tag == "th"}
    assert scopes == {"col", "row"}
    levels = [int(tag[1]) for tag in tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert all(found.get("alt") for tag, found in outline.tags if tag == "img")


def test_what_a_record_does_not_hold_is_named_and_never_zero(tmp_path: Path) -> None:
    write_run(tmp_path / "run", readings=False)
    outline, written = page(tmp_path, tmp_path / "run")
    assert written.absent == (
        "memory",
        "load of GPU, processor and disk",
        "loader and cache",
        "settings with proof",
    )
    assert "Not measured, or not in this record: memory, load" in outline.text
    assert "Memory" not in written.sections


def test_a_step_that_was_not_counted_in_samples_has_no_rate(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", readings=False)
    path.write_text(re.sub(r"^(\[(?:\d+,){5})8,", r"\1null,", path.read_text(), flags=re.MULTILINE))
    outline, _ = page(tmp_path, tmp_path / "run")
    assert f"samples/s {NOT_MEASURED}" in outline.text
    assert "Throughput" not in outline.text


def test_a_killed_run_shows_what_is_there_and_says_how_it_ended(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 6 // 10])
    outline, written = page(tmp_path, tmp_path / "run")
    assert "The step" in written.sections
    assert "the run did not end: it was killed, or is still running" in outline.text
    assert "the last line is incomplete" in outline.text


@pytest.mark.parametrize("kept", [0, 20, 1])
def test_an_empty_run_says_that_it_is(tmp_path: Path, kept: int) -> None:
    path = write_run(tmp_path / "run", steps=2)
    head = path.read_bytes().split(b"\n")[0]
    path.write_bytes({0: b"", 20: head[:20], 1: head + b"\n"}[kept])
    outline, written = page(tmp_path, tmp_path / "run")
    assert written.message.startswith("not enough evidence")
    assert "the parts of a step" in written.absent
    assert f"A step {NOT_MEASURED}".lower() in outline.text.lower()


def test_missing_ranks_are_counted_and_the_others_shown(tmp_path: Path) -> None:
    outline, written = page(tmp_path, ranks(tmp_path / "run", missing=2))
    assert "Ranks side by side" in written.sections
    assert "1 of 4 ranks left no record: 2" in outline.text
    assert "The verdict rests on rank 1." in outline.text
    assert "Rank 3, 29.6 ms a step" in outline.text


def test_a_newer_schema_is_named_and_its_steps_are_not_guessed(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    first, _, rest = path.read_bytes().partition(b"\n")
    head = json.loads(first) | {"schema": 99}
    path.write_bytes(json.dumps(head, separators=(",", ":")).encode() + b"\n" + rest)
    outline, written = page(tmp_path, tmp_path / "run")
    assert "99" in " ".join(outline.pieces)
    assert "the parts of a step" in written.absent
    assert "values over time" in written.absent


def test_two_runs_are_compared_and_only_changes_beyond_noise_are_marked(tmp_path: Path) -> None:
    outline, written = page(tmp_path, slow(tmp_path / "before"), fixed(tmp_path / "after"))
    assert written.message.startswith("faster: a step takes 0.6")
    assert written.sections == (
        "Differences",
        "Side by side",
        "Pictures of street-clips (before)",
        "Over time",
        "Verdict on each",
    )
    assert outline.text.count("faster, beyond noise") == 1, "data alone changed"
    assert outline.text.count("slower, beyond noise") == 0


def test_no_message_on_a_compared_page_is_cut_off(tmp_path: Path) -> None:
    """The longest ones have the name of their run before them."""
    outline, _ = page(tmp_path, slow(tmp_path / "slow"), fixed(tmp_path / "fixed"))
    assert " ..." not in outline.text


def test_three_runs_are_each_compared_with_the_first(tmp_path: Path) -> None:
    sources = [slow(tmp_path / "a"), fixed(tmp_path / "b"), slow(tmp_path / "c")]
    outline, written = page(tmp_path, *sources)
    assert "street-clips (b): faster" in written.message
    assert "street-clips (c): no difference beyond noise" in written.message
    assert outline.text.count("Parts of street-clips") == 2


def test_unequal_work_is_not_compared_and_the_reason_stands_there(tmp_path: Path) -> None:
    other = write_run(tmp_path / "b")
    other.write_text(
        re.sub(r"^(\[(?:\d+,){5})8,", r"\g<1>16,", other.read_text(), flags=re.MULTILINE)
    )
    outline, written = page(tmp_path, slow(tmp_path / "a"), tmp_path / "b")
    assert written.message.startswith("not comparable")
    assert "did not do the same work" in outline.text
    assert "beyond noise" not in outline.text


def test_a_log_and_a_measured_run_stand_side_by_side_uncompared(tmp_path: Path) -> None:
    _, written = page(tmp_path, slow(tmp_path / "a"), LOGS / "timm.log")
    assert written.message.startswith("not comparable")


def test_two_logs_are_compared(tmp_path: Path) -> None:
    outline, _ = page(tmp_path, LOGS / "mmcv_iter.log", LOGS / "timm.log")
    assert "Differences" in outline.text


@pytest.mark.parametrize(
    "name", ["mmcv_iter.log", "timm.log", "tqdm_chinese.log", "guide_reid.log", "metrics.csv"]
)
def test_a_log_of_another_tool_becomes_a_page(tmp_path: Path, name: str) -> None:
    outline, written = page(tmp_path, LOGS / name)
    assert "What the log says" in written.sections
    assert "not in the log" in outline.text or "at the first" in outline.text


def test_a_script_tag_in_a_log_shows_as_text(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    lines = (LOGS / "mmcv_iter.log").read_text().replace("mmseg", NASTY)
    log.write_text(f"{NASTY}\n{lines}")
    folder = tmp_path / f"{NASTY.replace('/', '')}"
    folder.mkdir()
    log = log.rename(folder / "train.log")
    page(tmp_path, log)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert text.count("<script") == 1
    assert "&lt;script&gt;alert" in text


def picture_run(folder: Path, sizes: dict[str, int]) -> Path:
    write_run(folder, steps=40, readings=False)
    (folder / "pictures").mkdir()
    rows = []
    for name, size in sizes.items():
        (folder / "pictures" / name).write_bytes(PNG + b"\0" * size)
        cell = PictureCell(caption=f"{name} shown", file=name)
        rows.append(PictureRow(title=name, cells=(cell,)))
    write_pictures(folder, Pictures(rows=tuple(rows)))
    return folder


def test_pictures_are_taken_as_they_are_while_there_is_room(tmp_path: Path) -> None:
    sizes = {"a.png": 300_000, "b.png": 600_000, "c.png": 200_000}
    outline, _ = page(tmp_path, picture_run(tmp_path / "run", sizes))
    shown = [found["alt"] for tag, found in outline.tags if tag == "img"]
    assert shown == ["a.png: a.png shown", "c.png: c.png shown"]
    assert "1 picture left out, so that the page stays small" in outline.text


def test_damaged_pictures_are_a_sentence_and_no_failure(tmp_path: Path) -> None:
    folder = picture_run(tmp_path / "run", {"a.png": 10})
    (folder / "pictures" / "a.png").write_bytes(b"no picture")
    assert "a.png does not hold what its name says" in page(tmp_path, folder)[0].text
    (folder / "pictures" / "pictures.json").write_text('{"kind":"Pictures"')
    assert "The run's pictures cannot be shown" in page(tmp_path, folder)[0].text


def test_a_record_of_endless_names_still_gives_a_small_page(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", steps=40)
    name = "x" * 1_000
    modules = [
        {"name": f"{n}{name}", "kind": name, "forward_us": n, "backward_us": None}
        for n in range(3_000)
    ]
    line = json.dumps({"kind": "modules", "at_us": 1, "step": 3, "modules": modules})
    path.write_text(path.read_text() + line + "\n")
    outline, _ = page(tmp_path, tmp_path / "run")
    assert "2960 more rows left out" in outline.text


def test_sections_that_do_not_fit_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = slow(tmp_path / "run")
    monkeypatch.setattr("pitstop.report.page.html.MOST_BYTES", 60_000)
    written = page_of([folder], tmp_path / "report.html")
    assert written.size_bytes <= 60_000
    assert "Over time" not in written.sections
    text = Outline((tmp_path / "report.html").read_text(encoding="utf-8")).text
    assert "Left out, so that the page stays below a megabyte: " in text


def test_the_page_never_replaces_what_it_is_about(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", steps=30)
    before = path.read_bytes()
    with pytest.raises(RecordError, match="another name"):
        page_of([path], path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("file", ["rank-0.jsonl", "pictures/pictures.json"])
def test_a_file_of_a_run_is_never_replaced_by_its_page(tmp_path: Path, file: str) -> None:
    path = slow(tmp_path / "run") / file
    before = path.read_bytes()
    with pytest.raises(RecordError, match="another name"):
        page_of([tmp_path / "run"], path)
    assert path.read_bytes() == before


def test_a_page_may_lie_in_the_run_and_be_replaced_there(tmp_path: Path) -> None:
    write_run(tmp_path / "run", steps=30)
    output = tmp_path / "run" / "report.html"
    assert page_of([tmp_path / "run"], output) == page_of([tmp_path / "run"], output)


def test_names_that_no_file_can_have_are_an_error_in_text(tmp_path: Path) -> None:
    endless = tmp_path / ("x" * 5_000)
    folder = fixed(tmp_path / "run")
    earlier = tmp_path / "page.html"
    earlier.touch()
    with pytest.raises(RecordError, match=f"cannot read {endless}"):
        page_of([endless], earlier)
    with pytest.raises(RecordError, match=f"cannot write {endless}"):
        page_of([folder], endless)


def test_words_beside_pictures_count_as_well(tmp_path: Path) -> None:
    folder = picture_run(tmp_path / "run", {"a.png": 10})
    cell = PictureCell(caption="&" * 300, file="a.png")
    rows = tuple(PictureRow(title="<" * 300, cells=(cell,)) for _ in range(1_000))
    write_pictures(folder, Pictures(rows=rows))
    outline, written = page(tmp_path, folder)
    assert written.size_bytes < MOST_BYTES
    shown = sum(tag == "img" for tag, _ in outline.tags)
    assert 100 < shown < 1_000
    assert f"{1_000 - shown} pictures left out" in outline.text


def test_nothing_to_report_on_is_said(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="at least one"):
        page_of([], tmp_path / "report.html")
    with pytest.raises(RecordError, match="there is no file or folder"):
        page_of([tmp_path / "nowhere"], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_the_same_record_gives_the_same_page(tmp_path: Path) -> None:
    folder = slow(tmp_path / "run")
    texts = []
    for name in ("a.html", "b.html"):
        page_of([folder], tmp_path / name)
        texts.append((tmp_path / name).read_bytes())
    assert texts[0] == texts[1]
