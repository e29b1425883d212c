"""How pages look, against golden pictures at desktop, phone and dark.

Pictures are compared small and blurred, so that a machine's own way of drawing letters does not
count and a block that moved, vanished or changed its colour does. ``pytest tests/browser
--update-golden`` draws them anew.
"""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFilter

from tests.browser.chromium import Tab

GOLDEN = Path(__file__).parent / "golden"
LOOKS = {
    "full-desktop": ("full", {"width": 1200}),
    "full-phone": ("full", {"width": 390}),
    "full-dark": ("full", {"width": 1200, "dark": True}),
    "gpu-desktop": ("gpu", {"width": 1200}),
    "compared-desktop": ("compared", {"width": 1200}),
    "log-desktop": ("log", {"width": 1200}),
}
SMALLER = 3
MOST_HEIGHT = 3000
# Of 255: a picture may differ by this on average, and by this in its worst square of 16 pixels.
TOLERANCE = 1.5
SQUARE_TOLERANCE = 24.0


def picture(tab: Tab, page: Path, look: dict[str, int | bool]) -> Image.Image:
    """Look at a page with a font that is the same everywhere, from its top."""
    tab.look(width=int(look["width"]), height=900, dark=bool(look.get("dark")))
    tab.open(page)
    # By its properties, since the page's policy refuses styles that are not its own.
    tab.evaluate("document.body.style.fontFamily = '\"DejaVu Sans\"'")
    # Where the records lie differs from run to run, and is no part of the look.
    tab.evaluate("document.querySelector('footer').remove()")
    shot = Image.open(io.BytesIO(tab.screenshot(most_height=MOST_HEIGHT))).convert("RGB")
    return shot.resize((shot.width // SMALLER, shot.height // SMALLER), Image.Resampling.BOX)


def difference(one: Image.Image, other: Image.Image) -> tuple[float, float]:
    """Mean difference, and that of the worst square; a page of another length is another page."""
    if abs(one.height - other.height) > 0.02 * other.height or one.width != other.width:
        return 255.0, 255.0
    height = min(one.height, other.height)
    blurred = [
        np.asarray(
            image.crop((0, 0, image.width, height)).filter(ImageFilter.GaussianBlur(2)),
            dtype=float,
        )
        for image in (one, other)
    ]
    apart = np.abs(blurred[0] - blurred[1]).mean(axis=2)
    rows, columns = apart.shape[0] // 16 * 16, apart.shape[1] // 16 * 16
    squares = apart[:rows, :columns].reshape(rows // 16, 16, columns // 16, 16).mean(axis=(1, 3))
    return float(apart.mean()), float(squares.max())


@pytest.mark.parametrize("name", list(LOOKS))
def test_a_page_looks_as_it_did(
    tab: Tab, pages: dict[str, Path], name: str, request: pytest.FixtureRequest
) -> None:
    kind, look = LOOKS[name]
    now = picture(tab, pages[kind], look)
    golden = GOLDEN / f"{name}.png"
    if request.config.getoption("--update-golden"):
        now.save(golden, optimize=True)
        pytest.skip(f"{golden.name} written anew")
    mean, worst = difference(now, Image.open(golden).convert("RGB"))
    assert mean <= TOLERANCE, f"{name} differs by {mean:.2f} of 255 on average"
    assert worst <= SQUARE_TOLERANCE, f"{name} differs by {worst:.1f} in one place"


@pytest.mark.parametrize(
    "change",
    [
        "document.querySelector('.hero').style.gridTemplateColumns = '1fr'",
        "document.querySelector('#step .drawing').style.display = 'none'",
        "document.querySelector('.findings').style.paddingLeft = '60px'",
        "document.body.style.background = '#ddeeff'",
        "document.querySelectorAll('#step .piece').forEach(e => e.style.fill = '#888888')",
    ],
)
def test_a_changed_layout_is_seen(tab: Tab, pages: dict[str, Path], change: str) -> None:
    """The comparison is worth something: each of these fails it."""
    before = picture(tab, pages["full"], {"width": 1200})
    tab.evaluate(change)
    shot = Image.open(io.BytesIO(tab.screenshot(most_height=MOST_HEIGHT))).convert("RGB")
    after = shot.resize((shot.width // SMALLER, shot.height // SMALLER), Image.Resampling.BOX)
    mean, worst = difference(after, before)
    assert mean > TOLERANCE or worst > SQUARE_TOLERANCE


def test_golden_pictures_are_small_and_all_are_used() -> None:
    found = {path.stem: path.stat().st_size for path in GOLDEN.glob("*.png")}
    assert set(found) == set(LOOKS)
    assert max(found.values()) < 150_000
