"""Messages arrive once and in order, whatever their size; whoever sends them never waits."""

import gc
import multiprocessing
import pickle
import queue as standard
import sys
import threading
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any, Protocol

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitstop.data.loader.request_queue import RequestQueue, with_request_queues

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="not used elsewhere")

# So long that only what never comes takes it.
PATIENCE_S = 60.0

# More than a pipe takes without a reader.
MORE_THAN_A_PIPE = [bytes([number % 256]) * 1000 for number in range(200)]


class MakesQueues(Protocol):
    def Queue(self, maxsize: int = 0) -> Any: ...  # noqa: N802 - the context's own name


def queue_of(context: MakesQueues | None = None, *, maxsize: int = 0) -> RequestQueue:
    maker = context or with_request_queues(multiprocessing.get_context("fork"))
    made = maker.Queue(maxsize)
    assert isinstance(made, RequestQueue)
    return made


def taken(from_queue: RequestQueue, count: int) -> list[Any]:
    return [from_queue.get(timeout=PATIENCE_S) for _ in range(count)]


def ended(sent: RequestQueue) -> None:
    sent.close()
    sent.join_thread()


def senders() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if "Feeder" in thread.name]


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(
        st.integers(0, 300) | st.integers(3900, 4200) | st.sampled_from([70_000, 200_000]),
        max_size=30,
    ),
    read_after=st.lists(st.integers(0, 3), min_size=30, max_size=30),
)
def test_messages_arrive_once_and_in_order(lengths: list[int], read_after: list[int]) -> None:
    messages = [(number, bytes(length)) for number, length in enumerate(lengths)]
    sent, found = queue_of(), []
    for number, message in enumerate(messages, start=1):
        sent.put(message)
        found += taken(sent, min(read_after[number - 1], number - len(found)))
    found += taken(sent, len(messages) - len(found))
    assert found == messages
    assert sent.empty()
    ended(sent)


def test_a_small_message_is_there_at_once_and_no_thread_sent_it() -> None:
    sent = queue_of()
    sent.put((7, [1, 2, 3]))
    assert not sent.empty()
    assert senders() == []
    assert sent.get(timeout=PATIENCE_S) == (7, [1, 2, 3])


@pytest.mark.parametrize(("spare", "threads"), [(0, 0), (-1, 1)])
def test_what_a_pipe_takes_whole_is_written_and_one_byte_more_is_not(
    spare: int, threads: int
) -> None:
    # 4,096 bytes are written whole: four of them the length, the rest the pickled message.
    frame = len(pickle.dumps(bytes(4000))) - 4000
    message = bytes(4096 - 4 - frame - spare)
    sent = queue_of()
    sent.put(message)
    assert len(senders()) == threads
    assert taken(sent, 1) == [message]
    ended(sent)


def test_whoever_sends_does_not_wait_for_a_reader() -> None:
    sent = queue_of()
    sender = threading.Thread(target=put_all, args=(sent, MORE_THAN_A_PIPE), daemon=True)
    sender.start()
    sender.join(PATIENCE_S)
    assert not sender.is_alive()
    assert taken(sent, len(MORE_THAN_A_PIPE)) == MORE_THAN_A_PIPE
    ended(sent)


def test_whoever_sends_does_not_wait_for_one_that_died_while_writing() -> None:
    sent = queue_of()
    lock = vars(sent)["_wlock"]
    lock.acquire()
    sent.put("first")
    assert sent.empty()
    lock.release()
    sent.put("second")
    assert taken(sent, 2) == ["first", "second"]
    ended(sent)


def put_all(into: RequestQueue, messages: list[Any]) -> None:
    for message in messages:
        into.put(message)


def echo(requests: RequestQueue, answers: RequestQueue) -> None:
    while (message := requests.get(timeout=PATIENCE_S)) is not None:
        answers.put(message)


@pytest.mark.parametrize(
    "method",
    ["fork", *(pytest.param(one, marks=pytest.mark.slow) for one in ("spawn", "forkserver"))],
)
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_other_processes_read_and_write_them(method: str) -> None:
    context: Any = with_request_queues(multiprocessing.get_context(method))
    requests, answers = queue_of(context), queue_of(context)
    child = context.Process(target=echo, args=(requests, answers), daemon=True)
    child.start()
    messages = [(number, "x" * (number * 700)) for number in range(20)]
    put_all(requests, [*messages, None])
    assert taken(answers, len(messages)) == messages
    child.join()
    ended(requests)


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_messages_of_several_writers_do_not_run_into_each_other() -> None:
    context: Any = with_request_queues(multiprocessing.get_context("fork"))
    answers = queue_of(context)
    large = [("theirs", bytes(100_000), number) for number in range(20)]
    child = context.Process(target=put_all, args=(answers, large), daemon=True)
    child.start()
    small = [("ours", number) for number in range(200)]
    put_all(answers, small)
    found = taken(answers, len(large) + len(small))
    child.join()
    assert [one for one in found if one[0] == "theirs"] == large
    assert [one for one in found if one[0] == "ours"] == small
    ended(answers)


class Counted:
    """Knows how often it was pickled."""

    def __init__(self, payload: bytes, times: int = 0) -> None:
        self.payload = payload
        self.times = times

    def __reduce__(self) -> tuple[object, ...]:
        self.times += 1
        return Counted, (self.payload, self.times)


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_what_a_worker_sends_is_pickled_once() -> None:
    context: Any = with_request_queues(multiprocessing.get_context("fork"))
    answers = queue_of(context)
    batch = [Counted(bytes(10_000))]
    child = context.Process(target=put_all, args=(answers, batch), daemon=True)
    child.start()
    assert [one.times for one in taken(answers, 1)] == [1]
    child.join()


def test_a_full_queue_says_so() -> None:
    sent = queue_of(maxsize=2)
    put_all(sent, [1, 2])
    with pytest.raises(standard.Full):
        sent.put(3, block=False)


def test_a_closed_queue_takes_nothing() -> None:
    sent = queue_of()
    sent.close()
    with pytest.raises(ValueError, match="is closed"):
        sent.put(1)


def test_a_queue_leaves_no_open_file_behind() -> None:
    def open_files() -> int:
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir()))

    queue_of().put(0)  # whatever is opened once and for all
    before = open_files()
    for _ in range(5):
        sent = queue_of()
        sent.put(1)
        sent.close()
        del sent
    assert open_files() == before


def test_the_context_itself_keeps_its_own_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    context = multiprocessing.get_context("fork")
    own = with_request_queues(context)
    assert type(own) is type(context)
    assert not isinstance(made_by(context), RequestQueue)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert with_request_queues(context) is context


def made_by(context: BaseContext) -> Any:
    return context.Queue()


def test_nothing_is_said_where_the_reader_has_ended(capfd: pytest.CaptureFixture[str]) -> None:
    """As in a worker whose trainer was killed: the thread that writes met a closed pipe."""
    sent = queue_of()
    sent._reader.close()  # pyright: ignore[reportPrivateUsage]
    sent.put(MORE_THAN_A_PIPE)
    ended(sent)
    assert capfd.readouterr() == ("", "")
