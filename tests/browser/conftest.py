"""One Chromium for all tests of this folder; without one they are skipped, and say so."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pitstop.cli.report import page_of
from tests.browser.chromium import Chromium, Tab, chromium, find_chromium
from tests.browser.gpu_record import on_gpu
from tests.browser.records import fixed, many_ranks, ranks, slow, write_run

LOG = Path(__file__).parents[1] / "data" / "logs" / "mmcv_iter.log"


@pytest.fixture(scope="session")
def browser() -> Iterator[Chromium]:
    program = find_chromium()
    if program is None:
        pytest.skip("no chromium on this machine: pages are not looked at")
    with chromium(program) as running:
        yield running


@pytest.fixture
def tab(browser: Chromium) -> Iterator[Tab]:
    opened = Tab(browser)
    opened.look()
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages of all kinds, by name."""
    place = tmp_path_factory.mktemp("pages")
    full = slow(place / "slow")
    log = place / "<script>alert(1)<" / "train.log"
    log.parent.mkdir()
    log.write_bytes(b"<script>alert(2)</script>\n" + LOG.read_bytes())
    killed = write_run(place / "killed")
    killed.write_bytes(killed.read_bytes()[:9_000])
    empty = write_run(place / "empty", steps=1)
    empty.write_bytes(empty.read_bytes().split(b"\n")[0] + b"\n")
    sources = {
        "full": [full],
        "gpu": [on_gpu(place / "gpu")],
        "log": [log],
        "ranks": [ranks(place / "ranks", missing=2)],
        "many ranks": [many_ranks(place / "many")],
        "compared": [full, fixed(place / "fixed")],
        "killed": [place / "killed"],
        "empty": [place / "empty"],
    }
    for name, source in sources.items():
        page_of(source, place / f"{name}.html")
    return {name: place / f"{name}.html" for name in sources}
