"""How a page opens and zooms in a browser: `python -m benchmarks.page_frames PAGE ...`.

Chromium counts the time it spends on scripts, styles and layout. A frame is one press of a button
that zooms, with the layout that follows; painting is not counted, for a headless browser does it in
another way than one with a screen. Needs a Chromium.
"""

import json
import statistics
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from tests.browser.chromium import Chromium, Tab, chromium, find_chromium

FRAMES = 60
COUNTED = ("ScriptDuration", "LayoutDuration", "RecalcStyleDuration")
# Layout happens when somebody asks where something is; in turns in and out, so nothing is at rest.
PRESS = """
(() => {
  const buttons = [...document.querySelectorAll('%s .zoom-buttons button')];
  buttons[%d].click();
  return document.body.getBoundingClientRect().height;
})()
"""


def main() -> int:
    """Measure every page and print a line on each."""
    parser = ArgumentParser(description="How pages open and zoom.")
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    program = find_chromium()
    if program is None:
        print("no chromium on this machine", file=sys.stderr)
        return 2
    with chromium(program) as browser:
        found = [measured(browser, page.resolve()) for page in options.pages]
    for one in found:
        frames = ", ".join(f"{where} {ms:.1f} ms" for where, ms in one["frame_ms"].items())
        opened = f"{one['bytes'] / 1e3:.0f} kB, open in {one['open_ms']:.0f} ms"
        print(f"{one['page']}: {opened}; a frame of zooming, median: {frames}")
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def measured(browser: Chromium, page: Path) -> dict[str, Any]:
    """Open a page and zoom in all its drawings."""
    tab = Tab(browser)
    tab.call("Performance.enable")
    tab.look(width=1280)
    tab.open(page)
    opened = tab.evaluate(
        "(() => { const t = performance.getEntriesByType('navigation')[0];"
        "return t.loadEventEnd - t.startTime; })()"
    )
    frame_ms = {}
    for where in ("#timeline", "#modules"):
        if tab.evaluate(f"!!document.querySelector('{where} .zoom-buttons button')"):
            frames = [_frame_ms(tab, where, number) for number in range(FRAMES)]
            frame_ms[where.removeprefix("#")] = statistics.median(frames)
    tab.close()
    return {
        "page": page.name,
        "bytes": page.stat().st_size,
        "open_ms": opened,
        "frames": FRAMES,
        "frame_ms": frame_ms,
    }


def _frame_ms(tab: Tab, where: str, number: int) -> float:
    before = _counted_s(tab)
    tab.evaluate(PRESS % (where, number // 5 % 2))
    return 1e3 * (_counted_s(tab) - before)


def _counted_s(tab: Tab) -> float:
    metrics = tab.call("Performance.getMetrics")["metrics"]
    return sum(metric["value"] for metric in metrics if metric["name"] in COUNTED)


if __name__ == "__main__":
    raise SystemExit(main())
