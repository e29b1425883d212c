"""A headless Chromium, spoken to over a pipe: pages are opened, looked at, clicked and typed into.

The DevTools protocol goes over two file descriptors (3 to the browser, 4 from it), JSON messages
ended by a zero byte, so nothing but the standard library is needed and no port is opened.
"""

import base64
import fcntl
import json
import os
import select
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS: Final = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
    "--font-render-hinting=none",
    "--force-color-profile=srgb",
    "--remote-debugging-pipe",
)
PATIENCE_S: Final = 60.0

Message = dict[str, Any]


def find_chromium() -> str | None:
    """Where a Chromium is; None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Chromium:
    """A running browser."""

    def __init__(self, program: str, profile: str) -> None:
        down_read, self._down = _pipe()
        self._up, up_write = _pipe()
        quiet = os.open(os.devnull, os.O_RDWR)
        actions = [
            (os.POSIX_SPAWN_DUP2, down_read, 3),
            (os.POSIX_SPAWN_DUP2, up_write, 4),
            (os.POSIX_SPAWN_DUP2, quiet, 1),
            (os.POSIX_SPAWN_DUP2, quiet, 2),
        ]
        line = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        environment = {"HOME": profile, "LANG": "C.UTF-8", "PATH": os.defpath}
        self._pid = os.posix_spawn(program, line, environment, file_actions=actions)
        for descriptor in (down_read, up_write, quiet):
            os.close(descriptor)
        self._rest = b""
        self._number = 0
        self._listeners: dict[str, Callable[[Message], None]] = {}

    def listen(self, session: str, listener: Callable[[Message], None]) -> None:
        self._listeners[session] = listener

    def call(self, method: str, values: Mapping[str, Any], session: str | None = None) -> Message:
        """Send a command and give its result; what happens meanwhile goes to the listeners."""
        self._number += 1
        number = self._number
        message: Message = {"id": number, "method": method, "params": dict(values)}
        if session is not None:
            message["sessionId"] = session
        _write_all(self._down, json.dumps(message).encode() + b"\0")
        answer = self.wait(lambda got: got.get("id") == number, f"an answer to {method}")
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def wait(self, wanted: Callable[[Message], bool], what: str) -> Message:
        until = time.monotonic() + PATIENCE_S
        while True:
            message = self._next(until, what)
            listener = self._listeners.get(message.get("sessionId", ""))
            if listener is not None and "method" in message:
                listener(message)
            if wanted(message):
                return message

    def _next(self, until: float, what: str) -> Message:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._up], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise TimeoutError(f"chromium gave no sign of {what} in {PATIENCE_S:.0f} s")
            data = os.read(self._up, 1 << 20)
            if not data:
                raise RuntimeError(f"chromium ended before {what}")
            self._rest += data
        line, self._rest = self._rest.split(b"\0", 1)
        return json.loads(line)

    def close(self) -> None:
        with suppress(RuntimeError, OSError):
            self.call("Browser.close", {})
        os.close(self._down)
        os.close(self._up)
        os.waitpid(self._pid, 0)


class Tab:
    """One page: what it says on its console, what it asks the network for, and what is on it."""

    def __init__(self, browser: Chromium) -> None:
        self._browser = browser
        target = browser.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._target = target
        attached = browser.call("Target.attachToTarget", {"targetId": target, "flatten": True})
        self._session: str = attached["sessionId"]
        self.console: list[str] = []
        self.requests: list[str] = []
        self._loads = 0
        browser.listen(self._session, self._on)
        for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **values: Any) -> Message:
        return self._browser.call(method, values, self._session)

    def _on(self, message: Message) -> None:
        method, values = message["method"], message["params"]
        if method == "Runtime.consoleAPICalled":
            self.console.append(str([one.get("value") for one in values["args"]]))
        elif method == "Runtime.exceptionThrown":
            self.console.append(str(values["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.console.append(values["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(values["request"]["url"])
        elif method == "Page.loadEventFired":
            self._loads += 1

    def look(self, *, width: int = 1200, height: int = 900, dark: bool = False,
             medium: str = "screen") -> None:  # fmt: skip
        """Choose the window, the colour scheme and the medium."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=medium, features=[scheme])

    def open(self, path: Path) -> None:
        """Load a file and wait for it."""
        before = self._loads
        self.call("Page.navigate", url=path.as_uri())
        while self._loads == before:
            self._browser.wait(lambda _: self._loads > before, "the page")

    def evaluate(self, expression: str) -> Any:
        """Give the value of an expression of the page."""
        got = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in got:
            raise RuntimeError(str(got["exceptionDetails"]))
        return got["result"].get("value")

    def click(self, selector: str) -> None:
        """Press and release the mouse in the middle of an element."""
        quoted = json.dumps(selector)
        place = self.evaluate(
            f"(() => {{ const e = document.querySelector({quoted});"
            "e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect();"
            "return [r.x + Math.min(r.width / 2, 40), r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call(
                "Input.dispatchMouseEvent",
                type=kind, x=place[0], y=place[1], button="left", clickCount=1,
            )  # fmt: skip

    def press(self, selector: str, key: str) -> None:
        """Put the focus on an element and strike a key: ``Enter``, ``Tab`` or ``Escape``."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")
        code = {"Enter": 13, "Tab": 9, "Escape": 27}[key]
        text = {"Enter": "\r"}.get(key, "")
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                text=text if kind == "keyDown" else "",
            )  # fmt: skip

    def screenshot(self, *, most_height: int = 4000) -> bytes:
        """The page from its top, as a PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {
            "x": 0, "y": 0, "width": size["width"],
            "height": min(size["height"], most_height), "scale": 1,
        }  # fmt: skip
        got = self.call(
            "Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True
        )
        return base64.b64decode(got["data"])

    def pdf(self) -> bytes:
        """The page as it prints."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=False)["data"])

    def close(self) -> None:
        self._browser.call("Target.closeTarget", {"targetId": self._target})


@contextmanager
def chromium(program: str) -> Iterator[Chromium]:
    """Run a browser with a profile of its own, and leave nothing behind."""
    profile = tempfile.mkdtemp(prefix="pitstop-browser-")
    browser = Chromium(program, profile)
    try:
        yield browser
    finally:
        browser.close()
        shutil.rmtree(profile, ignore_errors=True)


def _pipe() -> tuple[int, int]:
    """A pipe whose ends lie above the descriptors that the browser is given."""
    ends = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return high[0], high[1]


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
