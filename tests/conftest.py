"""Options and fixtures of the whole test suite."""

import gc
import os
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.order import by_length

# Machines are shared: how long an example takes says nothing about the code.
settings.register_profile("quick", deadline=None, derandomize=True, max_examples=40)
settings.register_profile("ci", settings.get_profile("quick"), max_examples=200)
# For runs by night: other examples each time.
settings.register_profile("nightly", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

# As many workers as cores: what a test starts must not take the cores of the other worker.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

_count_frozen = gc.get_freeze_count

_STOPS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write golden files anew from what the code does now, instead of comparing",
    )


@pytest.hookimpl(trylast=True)  # after what is not asked for has been left out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let several workers begin with what takes longest: begun last, it keeps one of them alone."""
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    if workers > 1:
        items[:] = by_length(items, workers)


def pytest_collection_finish() -> None:
    """Spare collections all that was imported: torch alone makes each take a third of a second."""
    gc.collect()
    gc.freeze()
    # To count what is frozen Python walks all of it, and each training asks: 70 ms every time.
    frozen = _count_frozen()
    gc.get_freeze_count = lambda: frozen


def pytest_unconfigure() -> None:
    """Let locks end in silence that nobody holds and that outlive the modules they look into.

    torch's compiler makes one as it is imported, to the end of the process. There it may be let go
    of after its module was cleared, and its end complains of that.
    """
    if "filelock" in sys.modules:
        del sys.modules["filelock"].BaseFileLock.__del__


@pytest.fixture(autouse=True, scope="module")
def _earlier_files_frozen() -> None:
    """Spare collections what tests of other files imported: a compiler costs each 0.3 s."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def nothing_frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process of a user's; the suite spares collections what it has imported."""
    monkeypatch.setattr(gc, "get_freeze_count", _count_frozen)
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.fixture(autouse=True)
def _signals_left_alone() -> Iterator[None]:
    """Programs that later tests start would inherit a signal that is ignored or blocked."""
    before = _ignored_and_blocked()
    yield
    assert _ignored_and_blocked() == before


def _ignored_and_blocked() -> tuple[set[int], set[int]]:
    ignored: set[int] = {number for number in _STOPS if signal.getsignal(number) == signal.SIG_IGN}
    return ignored, set(_STOPS & signal.pthread_sigmask(signal.SIG_BLOCK, ()))


@pytest.fixture
def with_signal_handlers() -> Iterator[None]:
    """What a shell starts in the background, or with nohup, ignores some; so would its children."""
    default = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGHUP: signal.SIG_DFL,
        signal.SIGQUIT: signal.SIG_DFL,
    }
    before = {number: signal.signal(number, handler) for number, handler in default.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
