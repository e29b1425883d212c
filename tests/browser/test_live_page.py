"""The live page in a real browser: renews itself, asks nobody else, survives the server's end."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pitstop.doctor.examine import examine
from pitstop.report.live.server import ServedPage, serving
from pitstop.report.live.tail import RunTail
from pitstop.report.live.view import LiveView, live_view, recent_run
from tests.browser.chromium import Tab
from tests.browser.records import NASTY, ranks, slow
from tests.browser.test_pages import CONTRAST, UNTOLD

PATIENCE_S = 120.0


def view_of(folder: Path) -> LiveView:
    run = RunTail(folder)
    run.poll(0.0)
    recent = recent_run(run)
    verdict = None if recent is None else examine(recent)
    view = live_view(run, now_s=0.0, is_alive=lambda _: True, verdict=verdict)
    return replace(view, state="running", age_s=2.0)


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LiveView]:
    place = tmp_path_factory.mktemp("live")
    return {
        "full": replace(view_of(slow(place / "full")), name=NASTY, step=60_000),
        "ranks": view_of(ranks(place / "ranks", missing=2)),
        "waiting": replace(view_of(place / "nowhere"), state="waiting"),
    }


@pytest.fixture
def page(views: dict[str, LiveView]) -> Iterator[ServedPage]:
    with serving(0, refresh_s=0.25) as served:
        served.publish(views["full"])
        yield served


class Address:
    """An address where a tab wants a path."""

    def __init__(self, page: ServedPage) -> None:
        self._page = page

    def as_uri(self) -> str:
        return self._page.address


def open_page(tab: Tab, page: ServedPage) -> None:
    tab.open(Address(page))  # pyright: ignore[reportArgumentType]


def until(tab: Tab, expression: str, wanted: Any) -> Any:
    """Ask the page again and again; the page's own clock is what is waited for."""
    end = time.monotonic() + PATIENCE_S
    while (got := tab.evaluate(expression)) != wanted and time.monotonic() < end:
        pass
    return got


def text_of(selector: str) -> str:
    return f"(document.querySelector('{selector}') || {{}}).textContent"


@pytest.mark.parametrize("kind", ["full", "ranks", "waiting"])
@pytest.mark.parametrize("width", [320, 390, 1200])
def test_the_page_is_silent_asks_only_its_server_and_fits(
    tab: Tab, page: ServedPage, views: dict[str, LiveView], kind: str, width: int
) -> None:
    page.publish(views[kind])
    tab.look(width=width, height=800)
    open_page(tab, page)
    tab.evaluate("window.marked = document.querySelector('#live-main')")
    until(tab, "performance.getEntriesByName(location.href + 'view.html').length > 1", wanted=True)
    assert tab.console == []
    asked = {url for url in tab.requests if not url.startswith("data:")}
    assert asked == {page.address, f"{page.address}view.html"}
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate(UNTOLD) == []
    assert tab.evaluate("window.marked.isConnected"), "what did not change is not replaced"


def test_a_new_view_shows_by_itself(tab: Tab, page: ServedPage, views: dict[str, LiveView]) -> None:
    open_page(tab, page)
    assert tab.evaluate(text_of("#live-progress b")) == "Step 60,000 of 150,000, 40.0%"
    page.publish(replace(views["full"], step=75_000))
    step = until(tab, text_of("#live-progress b"), "Step 75,000 of 150,000, 50.0%")
    assert step == "Step 75,000 of 150,000, 50.0%"
    page.publish(views["ranks"])
    assert until(tab, text_of("#ranks h2"), "Ranks side by side") == "Ranks side by side"
    assert until(tab, "document.title", "street-clips: running") == "street-clips: running"
    page.publish(views["waiting"])
    assert until(tab, "document.querySelectorAll('section').length", 0) == 0


def test_a_script_tag_in_a_record_shows_as_text(tab: Tab, page: ServedPage) -> None:
    open_page(tab, page)
    until(tab, "performance.getEntriesByName(location.href + 'view.html').length > 0", wanted=True)
    assert tab.evaluate("document.scripts.length") == 1
    assert tab.evaluate(text_of(".name")) == NASTY
    assert NASTY in tab.evaluate("document.title")


def test_the_browser_refuses_what_the_policy_forbids(tab: Tab, page: ServedPage) -> None:
    open_page(tab, page)
    tab.evaluate(
        "(() => { const s = document.createElement('script');"
        "s.textContent = 'window.planted = 1'; document.body.append(s);"
        "fetch('http://127.0.0.1:9/x').catch(() => 0); })()"
    )
    assert tab.evaluate("window.planted") is None
    assert any("Content Security Policy" in line for line in tab.console)


def test_the_end_of_the_run_is_the_last_thing_asked_for(
    tab: Tab, page: ServedPage, views: dict[str, LiveView]
) -> None:
    open_page(tab, page)
    page.publish(replace(views["full"], state="finished"))
    text = "The run is over: this is the last view."
    assert until(tab, text_of("#link"), text) == text
    assert tab.evaluate(text_of(".state")) == "finished"


def test_a_page_whose_server_is_gone_says_so_and_keeps_the_view(
    tab: Tab, views: dict[str, LiveView]
) -> None:
    with serving(0, refresh_s=0.25) as page:
        page.publish(views["full"])
        open_page(tab, page)
    text = "Nobody serves this page any more: this is the last view."
    assert until(tab, text_of("#link"), text) == text
    assert "60,000" in tab.evaluate(text_of("#live-progress b"))


def test_without_its_script_the_page_is_complete(tab: Tab, page: ServedPage) -> None:
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    open_page(tab, page)
    tab.call("Emulation.setScriptExecutionDisabled", value=False)
    assert "waits for data" in tab.evaluate(text_of("h1"))
    assert tab.evaluate("document.querySelectorAll('svg[role=img]').length") == 2


@pytest.mark.parametrize("dark", [False, True])
def test_letters_stand_out_in_light_and_dark(tab: Tab, page: ServedPage, dark: bool) -> None:
    tab.look(dark=dark)
    open_page(tab, page)
    least_text, least_piece = tab.evaluate(CONTRAST)
    assert least_text >= 4.5
    assert least_piece >= 4.5
    states = tab.evaluate("getComputedStyle(document.querySelector('.state')).color")
    assert states != tab.evaluate("getComputedStyle(document.body).color")
