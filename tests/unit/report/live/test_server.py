"""The page of a live view: for this machine only, four addresses, escaped, and gone when asked."""

import json
import re
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from pitstop.doctor.examine import examine
from pitstop.errors import PitstopError
from pitstop.report.live.page import LivePage
from pitstop.report.live.server import PortTaken, ServedPage, serving
from pitstop.report.live.tail import RunTail
from pitstop.report.live.view import LiveView, recent_run
from tests.browser.records import NASTY, ranks, write_run
from tests.unit.report.live_records import GrowingRun, look


def view_of(folder: Path) -> LiveView:
    tail = RunTail(folder)
    view = look(tail)
    recent = recent_run(tail)
    return replace(view, verdict=None if recent is None else examine(recent))


@pytest.fixture
def view(tmp_path: Path) -> LiveView:
    write_run(tmp_path / "run", name=NASTY)
    return replace(view_of(tmp_path / "run"), state="running")


@pytest.fixture
def page() -> Iterator[ServedPage]:
    with serving(0, refresh_s=0.0) as served:
        yield served


def ask(page: ServedPage, path: str, *, method: str = "GET", host: str | None = None,
        ) -> tuple[HTTPResponse, str]:  # fmt: skip
    place = urlsplit(page.address)
    assert place.hostname == "127.0.0.1"
    connection = HTTPConnection("127.0.0.1", place.port or 0, timeout=60)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", place.netloc if host is None else host)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer, body


def test_the_page_holds_the_view_and_forbids_everything_else(
    page: ServedPage, view: LiveView
) -> None:
    page.publish(view)
    answer, body = ask(page, "/")
    assert answer.status == 200
    assert body.startswith("<!doctype html>")
    assert "the training loop waits for data" in body
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Server"].strip() == "pitstop"
    assert "http://" not in body
    assert "https://" not in body


def test_everything_from_a_record_is_escaped(page: ServedPage, view: LiveView) -> None:
    page.publish(view)
    for path in ("/", "/view.html"):
        _, body = ask(page, path)
        assert NASTY not in body
        assert "&lt;script&gt;alert(" in body


def test_the_view_comes_as_json(page: ServedPage, view: LiveView) -> None:
    page.publish(view)
    answer, body = ask(page, "/view.json")
    assert answer.headers["Content-Type"] == "application/json; charset=utf-8"
    record = json.loads(body)
    assert (record["kind"], record["step"], record["name"]) == ("LiveView", 300, NASTY)
    assert record["verdict"]["primary"] == "DATA001"


def test_before_the_first_view_it_says_so(page: ServedPage) -> None:
    assert ask(page, "/")[0].status == 503


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example",
                                  "localhost.evil.example:8765", "", "192.168.1.7:8765",
                                  "evil.example:80:localhost", "localhost:evil.example",
                                  "127.0.0.1:123456", "localhost\x00"])  # fmt: skip
def test_a_name_that_was_made_to_point_here_is_refused(
    page: ServedPage, view: LiveView, host: str
) -> None:
    page.publish(view)
    for path in ("/", "/view.json", "/view.html"):
        answer, body = ask(page, path, host=host)
        assert answer.status == 403
        assert "loop" not in body


def test_two_names_are_refused_whichever_comes_first(page: ServedPage, view: LiveView) -> None:
    page.publish(view)
    place = urlsplit(page.address)
    for first, second in (("localhost", "evil.example"), ("evil.example", "localhost")):
        connection = HTTPConnection("127.0.0.1", place.port or 0, timeout=60)
        connection.putrequest("GET", "/view.json", skip_host=True)
        connection.putheader("Host", first)
        connection.putheader("Host", second)
        connection.endheaders()
        assert connection.getresponse().status == 403
        connection.close()


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9000", "127.0.0.1", "127.0.0.1:1"])
def test_this_machine_is_let_in_by_any_forwarded_port(
    page: ServedPage, view: LiveView, host: str
) -> None:
    page.publish(view)
    assert ask(page, "/", host=host)[0].status == 200


@pytest.mark.parametrize("path", ["/../../etc/passwd", "/rank-0.jsonl", "//etc/passwd", "/view",
                                  "/%2e%2e/%2e%2e/etc/passwd", "/templates/page.css", "*",
                                  "http://127.0.0.1/view.json"])  # fmt: skip
def test_there_is_nothing_else_to_be_had(page: ServedPage, view: LiveView, path: str) -> None:
    page.publish(view)
    answer, body = ask(page, path)
    assert (answer.status, body) == (404, "there is nothing here\n")


def test_it_can_only_be_read(page: ServedPage, view: LiveView) -> None:
    page.publish(view)
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert ask(page, "/", method=method)[0].status == 501
    answer, body = ask(page, "/", method="HEAD")
    assert (answer.status, body) == (200, "")


def test_a_taken_port_is_said_in_one_paragraph() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(PortTaken, match=f"port {port} .*--port 0"), serving(port, refresh_s=1):
            pass
    assert issubclass(PortTaken, PitstopError)


def test_it_listens_on_this_machine_alone_and_closes_its_port(view: LiveView) -> None:
    with serving(0, refresh_s=0.0) as page:
        page.publish(view)
        port = urlsplit(page.address).port or 0
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.2", port), timeout=60)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=60)
    with serving(port, refresh_s=0.0):
        pass


def test_a_page_that_was_looked_at_gets_to_see_the_end(view: LiveView) -> None:
    """The block ends once somebody was told; a page that nobody opened keeps nobody waiting."""
    import threading

    told: list[str] = []
    with serving(0, refresh_s=0.0) as page:
        page.publish(view)
        ask(page, "/")
        page.publish(replace(view, state="finished"))
        late = threading.Thread(target=lambda: told.append(ask(page, "/view.html")[1]))
        late.start()
    late.join()
    assert 'data-over="yes"' in told[0]


def test_every_kind_of_view_becomes_a_page(tmp_path: Path) -> None:
    ranks(tmp_path / "ranks", missing=2)
    begun = GrowingRun(tmp_path / "begun")
    pages = LivePage(refresh_s=1.0)
    for folder, text in (
        ("nowhere", "there is no record yet"),
        ("begun", "no step yet"),
        ("ranks", "1 of 4 ranks have no record yet"),
    ):
        body = pages.whole(view_of(tmp_path / folder))
        assert text in body
        assert "None" not in body
        assert "nan" not in body.replace("finance", "")
    assert begun.path.exists()


def test_a_bare_view_says_what_was_not_measured(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path)
    inside = LivePage(refresh_s=1.0).inside(look(RunTail(tmp_path)))
    assert inside.count('<dd class="value">not measured</dd>') == 6
    assert run.path.exists()


def connected(page: ServedPage) -> socket.socket:
    place = urlsplit(page.address)
    return socket.create_connection((place.hostname or "", place.port or 0), timeout=60)


def test_a_client_that_hangs_up_is_no_news(
    page: ServedPage, view: LiveView, capsys: pytest.CaptureFixture[str]
) -> None:
    page.publish(view)
    for request in (b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"):
        client = connected(page)
        client.sendall(request)
        # Ends with a reset instead of a farewell, so that writing to it fails.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    assert ask(page, "/")[0].status == 200
    assert capsys.readouterr() == ("", "")


def test_clients_that_say_nothing_do_not_keep_others_waiting(
    page: ServedPage, view: LiveView
) -> None:
    page.publish(view)
    before = threading.active_count()
    silent = [connected(page) for _ in range(300)]
    try:
        for _ in range(3):
            assert ask(page, "/view.json")[0].status == 200
        assert threading.active_count() - before < 60
    finally:
        for client in silent:
            client.close()


def test_prometheus_reads_the_numbers_of_the_view(page: ServedPage, view: LiveView) -> None:
    page.publish(view)
    answer, text = ask(page, "/metrics")
    assert answer.status == 200
    assert (answer.getheader("Content-Type") or "").startswith("text/plain; version=0.0.4")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    # By the format's own grammar: a name, labels in quotes, a number.
    line_of = re.compile(r'(\w+)\{(?:\w+="(?:[^"\\]|\\.)*",?)*\} (-?[\d.e+-]+)')
    found = [line_of.fullmatch(line) for line in lines]
    assert all(found)
    values = [(match[1], float(match[2])) for match in found if match is not None]
    shares = [value for name, value in values if name == "pitstop_share"]
    assert sum(shares) == pytest.approx(1)
    assert ("pitstop_step", float(view.step or 0)) in values
    assert text.count("# TYPE ") == len({name for name, _ in values})
