"""Pages in a real browser: silent, alone, told to those who do not see, and usable by hand."""

from itertools import combinations, pairwise
from pathlib import Path

import pytest

from pitstop.doctor.estimate.combine import combined_bound
from pitstop.doctor.judge import judge_record
from pitstop.records.store import read_run
from pitstop.report.terminal import limit_text
from tests.browser.chromium import Tab

KINDS = ("full", "gpu", "log", "ranks", "many ranks", "compared", "killed", "empty")

UNTOLD = """
[...document.querySelectorAll('svg')].filter(svg => {
  if (svg.closest('[aria-hidden=true]') || svg.parentElement.closest('svg')) return false;
  const names = (svg.getAttribute('aria-labelledby') || '').split(' ');
  const told = names.map(name => (document.getElementById(name) || {}).textContent || '');
  const isTold = told.length === 2 && told.every(text => text.length >= 3);
  return svg.getAttribute('role') !== 'img' || !isTold;
}).map(svg => svg.outerHTML.slice(0, 120))
"""

FIRST_COLUMN = """
[...document.querySelectorAll('#modules tbody tr')].map(row => row.cells[0].textContent.trim())
"""


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_silent_and_asks_nobody_for_anything(
    tab: Tab, pages: dict[str, Path], kind: str
) -> None:
    tab.open(pages[kind])
    assert tab.console == []
    outside = [url for url in tab.requests if not url.startswith("data:")]
    assert outside == [pages[kind].as_uri()]


@pytest.mark.parametrize("kind", KINDS)
def test_every_drawing_has_a_title_and_a_text_alternative(
    tab: Tab, pages: dict[str, Path], kind: str
) -> None:
    tab.open(pages[kind])
    assert tab.evaluate(UNTOLD) == []
    if kind != "empty":
        assert tab.evaluate("document.querySelectorAll('svg[role=img]').length") > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [320, 390, 1200])
def test_no_page_is_wider_than_its_window(
    tab: Tab, pages: dict[str, Path], kind: str, width: int
) -> None:
    tab.look(width=width, height=800)
    tab.open(pages[kind])
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_the_browser_refuses_what_the_policy_forbids(tab: Tab, pages: dict[str, Path]) -> None:
    """The other tests see no request because there is none; this one tries, and is stopped."""
    tab.open(pages["full"])
    tab.evaluate(
        "(() => { const i = new Image(); i.src = 'http://127.0.0.1:9/x.png';"
        "document.body.append(i); const s = document.createElement('script');"
        "s.textContent = 'window.planted = 1'; document.body.append(s); })()"
    )
    assert tab.evaluate("window.planted") is None
    assert any("Content Security Policy" in line for line in tab.console)


def test_a_script_tag_in_a_log_or_a_record_shows_as_text(tab: Tab, pages: dict[str, Path]) -> None:
    for kind, text in (("log", "<script>alert(1)<"), ("full", "<script>alert('街道')</script>")):
        tab.open(pages[kind])
        assert tab.evaluate("document.scripts.length") == 1
        assert text in tab.evaluate("document.body.textContent")


def test_a_table_sorts_by_mouse_and_back(tab: Tab, pages: dict[str, Path]) -> None:
    tab.open(pages["full"])
    before = tab.evaluate(FIRST_COLUMN)
    assert before[0] == "stages"
    tab.click("#modules thead th:nth-child(3) button")
    heading = "document.querySelector('#modules thead th:nth-child(3)').getAttribute('aria-sort')"
    assert tab.evaluate(heading) == "descending"
    assert tab.evaluate(FIRST_COLUMN)[:3] == ["stages", "spike_branch", "fusion"]
    tab.click("#modules thead th:nth-child(3) button")
    assert tab.evaluate(heading) == "ascending"
    assert tab.evaluate(FIRST_COLUMN)[1:] == ["fusion", "spike_branch", "stages"]


def test_a_table_sorts_by_keyboard_and_what_was_not_measured_stands_last(
    tab: Tab, pages: dict[str, Path]
) -> None:
    tab.open(pages["full"])
    for _ in range(2):
        tab.press("#modules thead th:nth-child(4) button", "Enter")
        assert tab.evaluate(FIRST_COLUMN)[-1] == "fusion", "its backward was not measured"
    tab.press("#modules thead th:nth-child(1) button", "Enter")
    names = tab.evaluate(FIRST_COLUMN)
    assert names.index("fusion") < names.index("spike_branch") < names.index("stages")


def test_the_tree_opens_by_mouse_and_by_keyboard(tab: Tab, pages: dict[str, Path]) -> None:
    tab.open(pages["full"])
    inner = "document.querySelector('.tree details ul').checkVisibility()"
    assert tab.evaluate(inner) is False
    tab.click(".tree summary")
    assert tab.evaluate(inner) is True
    tab.press(".tree summary", "Enter")
    assert tab.evaluate(inner) is False
    tab.click(".tree .open-all")
    assert tab.evaluate("[...document.querySelectorAll('.tree details')].every(d => d.open)")


def test_ticked_fixes_give_what_the_doctor_says_they_give(tab: Tab, pages: dict[str, Path]) -> None:
    """Every choice of fixes, against the formula that the verdict itself is made with."""
    found = judge_record(read_run(pages["full"].parent / "slow")).verdict.findings
    bounded = [finding for finding in found if finding.bound is not None]
    assert len(bounded) >= 2
    tab.open(pages["full"])
    boxes = "[...document.querySelectorAll('.what-if input')]"
    codes = f"{boxes}.map(box => box.closest('label').querySelector('b').textContent)"
    assert tab.evaluate(codes) == [finding.code for finding in bounded]
    shown = "document.querySelector('.what-if output').textContent"
    saved = "parseFloat(document.querySelectorAll('.what-if svg > rect')[1].getAttribute('width'))"
    ticked = {finding.code for finding in bounded if finding.severity != "info"}
    for count in range(len(bounded) + 1):
        for chosen in combinations(bounded, count):
            for place, finding in enumerate(bounded, 1):
                if (finding in chosen) != (finding.code in ticked):
                    tab.click(f".fixes li:nth-child({place}) input")
            ticked = {finding.code for finding in chosen}
            bound = combined_bound(chosen)
            expected = "nothing gained" if bound is None else limit_text(bound)
            assert tab.evaluate(shown) == expected, ticked
            share = 0 if bound is None else bound.saved_share
            assert abs(tab.evaluate(saved) - 100 * share) < 1e-6


def test_a_timeline_zooms_by_button_by_key_and_onto_a_part(
    tab: Tab, pages: dict[str, Path]
) -> None:
    tab.open(pages["full"])
    figure = "document.querySelector('#timeline figure')"
    width = f"{figure}.querySelector('.zoom').getAttribute('width')"
    ticks = f"[...{figure}.querySelectorAll('.tick')].map(tick => tick.textContent)"
    before = tab.evaluate(ticks)
    tab.click("#timeline figure .zoom-buttons button")
    assert tab.evaluate(width) == "150%"
    assert tab.evaluate(ticks) != before
    tab.press("#timeline figure .drawing", "Escape")
    assert (tab.evaluate(width), tab.evaluate(ticks)) == ("100%", before)
    last = f"[...{figure}.querySelectorAll('.zoom rect')].at(-1)"
    tab.evaluate(f"{last}.dispatchEvent(new MouseEvent('click', {{bubbles: true}}))")
    apart = tab.evaluate(
        f"(() => {{ const a = {last}.getBoundingClientRect(), "
        f"b = {figure}.querySelector('.drawing').getBoundingClientRect(); "
        "return [a.left - b.left, a.right - b.right]; })()"
    )
    assert max(map(abs, apart)) <= 2, "the part that was clicked fills the drawing"


def test_zooming_onto_a_module_hides_the_others_and_brings_them_back(
    tab: Tab, pages: dict[str, Path]
) -> None:
    tab.open(pages["gpu"])
    drawing = "document.querySelector('#modules figure .drawing')"
    pieces = f"[...{drawing}.querySelectorAll('.zoom rect.piece')]"
    visible = f"{pieces}.filter(one => getComputedStyle(one).display !== 'none').length"
    everything = tab.evaluate(f"{pieces}.length")
    assert tab.evaluate(visible) == everything > 100
    mlp = f"{pieces}.find(one => one.textContent.startsWith('transformer.h.5.mlp'))"
    tab.evaluate(f"{mlp}.dispatchEvent(new MouseEvent('click', {{bubbles: true}}))")
    # What is around it in both passes stays, what touches its edges, and what is held there.
    assert 4 <= tab.evaluate(visible) <= 30
    inside = f"(() => {{ const a = {mlp}.getBoundingClientRect(), b = {drawing}"
    wide = tab.evaluate(f"{inside}.getBoundingClientRect(); return a.width / b.width; }})()")
    assert wide > 0.5, "as far as the page zooms, forty times"
    tab.press("#modules figure .drawing", "Escape")
    assert tab.evaluate(visible) == everything


@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("kind", ["full", "gpu", "log", "compared"])
def test_no_label_of_a_scale_lies_in_its_plot_or_outside_the_page(
    tab: Tab, pages: dict[str, Path], kind: str, width: int
) -> None:
    tab.look(width=width, height=800)
    tab.open(pages[kind])
    labels = tab.evaluate(
        "[...document.querySelectorAll('svg[class*=gutter] > text[x^=\"-\"]')].map(text => {"
        " const box = text.getBoundingClientRect();"
        " return [box.left, box.right - text.parentElement.getBoundingClientRect().left]; })"
    )
    assert len(labels) >= 3
    assert all(left >= 0 and into_plot <= 0 for left, into_plot in labels)


def test_the_keyboard_reaches_the_page_in_order(tab: Tab, pages: dict[str, Path]) -> None:
    tab.open(pages["full"])
    tab.press("a.skip", "Tab")
    assert tab.evaluate("document.activeElement.getAttribute('href')") == "#run"
    unnamed = (
        "[...document.querySelectorAll('button, a, [tabindex]')]"
        ".filter(e => !(e.textContent.trim() || e.getAttribute('aria-label'))).length"
    )
    assert tab.evaluate(unnamed) == 0
    levels = tab.evaluate("[...document.querySelectorAll('h1,h2,h3')].map(h => +h.tagName[1])")
    assert levels[0] == 1
    assert all(later - earlier <= 1 for earlier, later in pairwise(levels))


def test_without_its_script_the_page_is_complete(tab: Tab, pages: dict[str, Path]) -> None:
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    tab.open(pages["full"])
    tab.call("Emulation.setScriptExecutionDisabled", value=False)
    assert tab.evaluate("document.querySelectorAll('th button').length") == 0
    assert len(tab.evaluate(FIRST_COLUMN)) == 4
    assert tab.evaluate("document.querySelector('#modules thead').textContent.trim()")


CONTRAST = """
(() => {
  const parse = text => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const light = colour => {
    const [r, g, b] = parse(colour).map(v => v / 255)
      .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (a, b) => {
    const [low, high] = [light(a), light(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  const paper = getComputedStyle(document.body).backgroundColor;
  const texts = [...document.querySelectorAll('h1, p, td, th, dt, dd, a, .code b, .outcome, li')]
    .map(e => ratio(getComputedStyle(e).color, paper));
  const pieces = [...document.querySelectorAll('svg .on-piece')].map(text =>
    ratio(getComputedStyle(text).fill,
          getComputedStyle(text.parentElement.previousElementSibling).fill));
  return [Math.min(...texts), Math.min(...pieces)];
})()
"""


@pytest.mark.parametrize("dark", [False, True])
def test_letters_stand_out_in_light_and_dark(tab: Tab, pages: dict[str, Path], dark: bool) -> None:
    tab.look(dark=dark)
    tab.open(pages["full"])
    least_text, least_piece = tab.evaluate(CONTRAST)
    assert least_text >= 4.5
    assert least_piece >= 4.5


def test_a_printed_page_shows_what_is_closed_on_the_screen(
    tab: Tab, pages: dict[str, Path]
) -> None:
    tab.look(width=794, medium="print")
    tab.open(pages["full"])
    tab.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert tab.evaluate("document.querySelector('.tree details ul').checkVisibility()")
    assert tab.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert tab.pdf().startswith(b"%PDF")
