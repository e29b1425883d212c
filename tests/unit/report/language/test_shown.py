"""Terminal and page in Chinese: the same numbers, other words, and names as they were."""

import base64
import hashlib
import html
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text
from typer.testing import CliRunner

from pitstop.cli.main import app
from pitstop.cli.report import page_of
from pitstop.errors import PitstopError
from pitstop.report.language.page import page_in_language
from pitstop.report.language.translate import Translator
from pitstop.report.terminal import make_console
from tests.browser.gpu_record import on_gpu
from tests.browser.records import NASTY, slow

CHINESE = re.compile(r"[\u4e00-\u9fff]")
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
# Three words of English in a row, outside of code.
PROSE = re.compile(r"\b[a-z]{2,} [a-z]{2,} [a-z]{2,}\b")


def printed(*command: str) -> str:
    result = CliRunner().invoke(app, list(command))
    assert result.exit_code in (0, 1), result.output
    return result.output


def seen(page: str) -> list[str]:
    """What stands between the tags of a page, but for code."""
    bare = re.sub(r"<(style|script|code|pre)[\s>].*?</\1>", "", page, flags=re.DOTALL)
    pieces = (html.unescape(piece).strip() for piece in re.split(r"<[^>]*>", bare))
    return [piece for piece in pieces if piece]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return slow(tmp_path_factory.mktemp("runs") / "slow")


def test_the_verdict_on_a_run_is_chinese_line_by_line(run: Path) -> None:
    english = printed("doctor", str(run)).splitlines()
    chinese = printed("doctor", str(run), "--lang", "zh").splitlines()
    assert len(chinese) == len(english)
    assert not [line for line in chinese if PROSE.search(re.sub(r"`[^`]*`", "", line))]
    assert CHINESE.search(chinese[0])


def test_every_number_of_a_line_is_said_in_chinese_too(run: Path) -> None:
    english = printed("doctor", str(run)).splitlines()
    chinese = printed("doctor", str(run), "--lang", "zh").splitlines()
    for one, other in zip(english, chinese, strict=True):
        assert sorted(NUMBER.findall(one)) == sorted(NUMBER.findall(other)), (one, other)


def test_the_record_stays_english_for_programs(run: Path) -> None:
    asked = [json.loads(printed("doctor", str(run), "--json", "-", *more)) for more in ([], ZH)]
    assert asked[0] == asked[1]


ZH = ["--lang", "zh"]


@pytest.mark.parametrize("command", ["doctor", "report"])
def test_a_language_without_a_table_is_refused(run: Path, command: str) -> None:
    result = CliRunner().invoke(app, [command, str(run), "--lang", "fr"])
    assert isinstance(result.exception, PitstopError)
    assert str(result.exception) == "--lang fr is not one of en, zh"


@pytest.mark.parametrize("make", [slow, on_gpu])
def test_a_page_in_chinese_says_nothing_in_english(
    make: Callable[[Path], Path], tmp_path: Path
) -> None:
    source = make(tmp_path / "run")
    page_of([source], tmp_path / "zh.html", language="zh")
    page_of([source], tmp_path / "en.html")
    page = (tmp_path / "zh.html").read_text(encoding="utf-8")
    assert '<html lang="zh-CN">' in page
    left = [piece for piece in seen(page) if PROSE.search(piece) and not CHINESE.search(piece)]
    from_the_record = ("num parameters", "slow read of")
    assert [piece for piece in left if not any(name in piece for name in from_the_record)] == []
    english = (tmp_path / "en.html").read_text(encoding="utf-8")
    for tag in ("<section", "<table", "<td", "<rect", "<text", "<button"):
        assert page.count(tag) == english.count(tag), tag


def test_names_from_the_record_stay_and_stay_escaped(run: Path, tmp_path: Path) -> None:
    page_of([run], tmp_path / "zh.html", language="zh")
    page = (tmp_path / "zh.html").read_text(encoding="utf-8")
    assert html.escape(NASTY) in page
    assert NASTY not in page


def test_the_script_speaks_the_language_and_the_policy_names_it(run: Path, tmp_path: Path) -> None:
    page_of([run], tmp_path / "zh.html", language="zh")
    page = (tmp_path / "zh.html").read_text(encoding="utf-8")
    script = page.split("<script>")[1].split("</script>")[0]
    assert 'copy: "复制"' in script
    assert 'className = "copy"' in script
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page


def test_code_and_styles_of_a_page_are_left_alone() -> None:
    say = Translator([("slow", "慢")])
    page = '<style>slow</style><p aria-label="slow">slow</p><code>slow</code><b>slow &lt;3</b>'
    said = '<style>slow</style><p aria-label="慢">慢</p><code>slow</code><b>slow &lt;3</b>'
    assert page_in_language(page, say) == said


def test_a_table_keeps_its_columns_and_a_head_its_colour() -> None:
    text = io.StringIO()
    console = make_console(text, language="zh")
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("part of the step")
    table.add_column("total", justify="right")
    table.add_row("forward", "3.2 s")
    console.print(Text.assemble(("bottleneck: ", "bold"), "logging takes much of the step"), table)
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    assert lines[0] == "瓶颈\uff1a写日志占了一步的很大部分"
    assert [line.split() for line in lines[1:]] == [["一步的部分", "合计"], ["forward", "3.2", "s"]]
