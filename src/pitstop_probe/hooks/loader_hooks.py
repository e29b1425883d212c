"""Where DataLoaders are observed: the wait for a batch, and the time inside their workers.

A worker is another process, forked or started anew; both run the same wrapper around torch's
fetcher, and leave their times in a file of their own, which the training process reads at the end.
"""

import functools
import json
import os
import sys
import time
import weakref
from multiprocessing import parent_process, util
from threading import get_ident
from typing import Any, Callable, Dict, List, Optional

from pitstop_probe.hooks.patches import Patch, replace
from pitstop_probe.hooks.torch_hooks import part_of
from pitstop_probe.stacks.stack import Stack
from pitstop_probe.steps.parts import Fetch, after_aside
from pitstop_probe.steps.samples import first_dimension
from pitstop_probe.steps.step_tracker import StepTracker

_WRITE_EVERY_NS = 500_000_000
_MOST_FILES = 8
_LENGTH_ASKED = "_IterableDataset_len_called"
# Batches that stand for all when loading is left out.
_REPLAYED = 8


class LoaderSeen:
    """What is known of one DataLoader."""

    def __init__(self, loader: Any) -> None:
        self.loader = weakref.ref(loader)
        self.identity = id(loader)
        self.passes = 0
        self.batches = 0
        self.place: Optional[str] = None
        """File and line that first iterated it."""
        self.whole_passes = 0
        """Passes that went on until there was no further batch."""
        self.whole_batches = 0
        """Batches of these."""
        self.about = describe_loader(loader)


class _Pass:
    """One pass through a loader: what its fetches are said to be."""

    __slots__ = ("_before", "is_usual", "next", "plain", "seen")

    def __init__(self, seen: LoaderSeen, fetch: Fetch) -> None:
        self.seen = seen
        self.plain = fetch
        self.next = fetch._replace(first=True)
        """What the next one is."""
        self._before = seen.batches
        self.is_usual = False
        """Whether the next one is one of many that are all alike."""

    def brought(self, batch: Any) -> Fetch:
        """Take in a batch; give what its fetch was."""
        self.seen.batches += 1
        fetch, self.next = self.next, self.plain
        samples = self._samples(batch)
        return fetch if samples == fetch.samples else fetch._replace(samples=samples)

    def ended(self, error: BaseException) -> Fetch:
        """Take in that there is no further batch; give what the fetch was that found it."""
        if isinstance(error, StopIteration):
            self.seen.whole_passes += 1
            self.seen.whole_batches += self.seen.batches - self._before
        return self.next._replace(last=True)

    def _samples(self, batch: Any) -> Optional[int]:
        """Say how many samples a batch holds: a full one, if it is not the last of its pass."""
        size, length = self.plain.samples, self.seen.about["length"]
        if size is None or (length is not None and self.seen.batches - self._before < length):
            return size
        found = first_dimension(batch)
        if length is None:  # of a stream any batch may be the last
            return size if found == size else None
        return size if found is None or found > size else found

    def becomes_usual(self, tracker: StepTracker) -> bool:
        """Whether it is from now on."""
        self.is_usual = self.next is self.plain and self.plain.loader in tracker.trains
        return self.is_usual


class Loaders:
    """Observes every DataLoader of the process.

    Args:
        tracker: Receives what is observed.
        torch: The script's torch.
        on_new: Called when a loader is first iterated.
        replay_after: Steps after which batches are no longer loaded but used again; None loads.
        stack: Says which lines are the script's own.
    """

    def __init__(
        self,
        tracker: StepTracker,
        torch: Any,
        on_new: Callable[[], None],
        replay_after: Optional[int] = None,
        *,
        stack: Optional[Stack] = None,
    ) -> None:
        self._tracker = tracker
        self._stack = Stack() if stack is None else stack
        self._on_new = on_new
        self._replay_after = replay_after
        self.seen: Dict[int, LoaderSeen] = {}
        data = part_of(torch, "utils.data.dataloader")
        self.patches: List[Patch] = [
            replace(data.DataLoader, "__iter__", self._start),
            replace(data._BaseDataLoaderIter, "__next__", self._next),
        ]

    def _start(self, original: Callable[..., Any]) -> Callable[..., Any]:
        tracker = self._tracker

        @functools.wraps(original)
        def iterate(loader: Any) -> Any:
            if not tracker.is_mine:
                return original(loader)
            seen = self._seen(loader)
            seen.passes += 1
            fetch = Fetch(seen.identity, loader.num_workers, samples=loader.batch_size)
            entered = tracker.enter("loader start", fetch)
            try:
                iterator = original(loader)
            finally:
                if entered:
                    tracker.leave("loader start")
            known = seen.about["pids"]
            known += [pid for pid in _pids_of(iterator) if pid not in known]
            iterator._pitstop = _Pass(seen, fetch)
            return iterator

        return iterate

    def _next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        tracker = self._tracker

        replays = self._replay_after is not None

        @functools.wraps(original)
        def fetch(iterator: Any) -> Any:
            loader_pass: Optional[_Pass] = getattr(iterator, "_pitstop", None)
            if loader_pass is None:
                return original(iterator)
            if (
                not tracker.is_sampling
                and (loader_pass.is_usual or loader_pass.becomes_usual(tracker))
                and get_ident() == tracker.thread
            ):
                start = tracker.now()
                around, tracker.at = tracker.at, "data"
                try:
                    batch = self._batch(iterator, original) if replays else original(iterator)
                except BaseException as error:
                    tracker.note("data", start, loader_pass.ended(error))
                    raise
                finally:
                    tracker.at, tracker.last_kind = around, after_aside(tracker.last_kind, "data")
                loader_pass.seen.batches += 1
                return batch
            region = tracker.begin("data", loader_pass.next)
            if region is None:
                return original(iterator)
            try:
                batch = self._batch(iterator, original) if replays else original(iterator)
            except BaseException as error:
                region[3] = loader_pass.ended(error)
                raise
            else:
                region[3] = loader_pass.brought(batch)
                return batch
            finally:
                tracker.end(region)

        return fetch

    def _batch(self, iterator: Any, original: Callable[..., Any]) -> Any:
        after = self._replay_after
        if after is None or self._tracker.steps < after - _REPLAYED:
            return original(iterator)
        kept: List[Any] = iterator.__dict__.setdefault("_pitstop_kept", [])
        if len(kept) < _REPLAYED:
            kept.append(original(iterator))
            return kept[-1]
        iterator._pitstop_turn = getattr(iterator, "_pitstop_turn", -1) + 1
        return kept[iterator._pitstop_turn % len(kept)]

    def _seen(self, loader: Any) -> LoaderSeen:
        seen = self.seen.get(id(loader))
        if seen is None or seen.loader() is not loader:
            seen = self.seen[id(loader)] = LoaderSeen(loader)
            frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
            seen.place = self._stack.place(frame)
            self._on_new()
        return seen


def _pids_of(iterator: Any) -> List[int]:
    """The processes that load a pass: its workers, or this one."""
    return [worker.pid for worker in getattr(iterator, "_workers", ())] or [os.getpid()]


def describe_loader(loader: Any) -> Dict[str, Any]:
    """Say how a loader was built."""
    context = getattr(loader, "multiprocessing_context", None)
    method = getattr(context, "get_start_method", lambda: None)()
    return {
        "dataset": type(loader.dataset).__name__,
        "workers": int(loader.num_workers),
        "prefetch": loader.prefetch_factor if loader.num_workers else None,
        "batch_size": loader.batch_size,
        "pinned": bool(loader.pin_memory),
        "persistent": bool(loader.persistent_workers),
        "start_method": method,
        "length": _length_of(loader),
        "pids": [],
    }


def _length_of(loader: Any) -> Optional[int]:
    """Batches of a pass; None where the dataset does not tell, for whatever reason."""
    asked = getattr(loader, _LENGTH_ASKED, None)
    try:
        return len(loader)
    except Exception:  # noqa: BLE001 - the script never asked: its dataset's answer is its own
        return None
    finally:
        # A stream that was asked is held to its answer: torch warns of every sample beyond.
        if getattr(loader, _LENGTH_ASKED, None) is not asked:
            setattr(loader, _LENGTH_ASKED, asked)


class WorkerTimer:
    """Times a dataset and its collating, in whichever process they run.

    Args:
        torch: The process's torch.
        folder: Where workers leave their times.
        tracker: Says which batches to time where the training process loads its own.
    """

    def __init__(self, torch: Any, folder: str, tracker: StepTracker) -> None:
        self._tracker = tracker
        self._folder = folder
        self._worker_info = torch.utils.data.get_worker_info
        self._read_ns = 0
        self._collate_ns = 0
        self._batches = 0
        self._passed_by = 0
        self._first_ns: Optional[int] = None
        self._last_ns = 0
        self._cpu_before_s = 0.0
        self._bytes_before: Optional[int] = None
        self._written_ns = 0
        self._written_batches = 0
        self._files = _OpenedFiles(os.path.abspath(folder))
        fetch = part_of(torch, "utils.data._utils.fetch")
        self.patches: List[Patch] = [
            replace(fetch._MapDatasetFetcher, "fetch", self._fetch),
            replace(fetch._IterableDatasetFetcher, "fetch", self._fetch),
        ]

    def restart(self) -> None:
        """Forget the times of the parent, in a process just forked."""
        self._read_ns = self._collate_ns = self._batches = self._passed_by = 0
        self._written_ns = self._written_batches = 0
        self._first_ns = None

    def _fetch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        tracker = self._tracker

        @functools.wraps(original)
        def fetch(fetcher: Any, index: Any) -> Any:
            if not tracker.is_sampling:
                self._passed_by += 1
                return original(fetcher, index)
            start = time.perf_counter_ns()
            if self._first_ns is None:
                self._begin(start)
            plain = fetcher.collate_fn
            fetcher.collate_fn = collate = _TimedCollate(plain)
            try:
                batch = original(fetcher, index)
            finally:
                fetcher.collate_fn = plain
            self._add(start, time.perf_counter_ns(), collate.total_ns)
            return batch

        return fetch

    def _begin(self, now: int) -> None:
        """See to a process that loads its first batch; what it did until then is no loading."""
        self._first_ns = now
        self._cpu_before_s = time.process_time()
        self._bytes_before = _storage_bytes()
        if self._worker_info() is not None:
            sys.addaudithook(self._files)
            util.Finalize(None, self._write, exitpriority=0)

    def _add(self, start: int, end: int, collating: int) -> None:
        self._batches += 1
        self._collate_ns += collating
        self._read_ns += end - start - collating
        self._last_ns = end
        # Of the last batch only workers are told, if they are not killed, and the first alone is
        # no measure of the others.
        is_twice_as_many = self._batches >= 2 * self._written_batches
        if is_twice_as_many or end - self._written_ns >= _WRITE_EVERY_NS:
            self._write()

    def _write(self) -> None:
        if self._batches == self._written_batches:
            return
        self._written_ns, self._written_batches = self._last_ns, self._batches
        info = self._worker_info()
        path = os.path.join(self._folder, "worker-{}.jsonl".format(os.getpid()))
        alive_ns = self._last_ns - (self._first_ns or self._last_ns)
        parent = parent_process() if info is not None else None
        before, cpu_s = self._bytes_before, time.process_time() - self._cpu_before_s
        line = {
            "pid": os.getpid(),
            # Not the one that the system names: a fork server stands between.
            "parent": os.getpid() if parent is None else parent.pid,
            "worker": -1 if info is None else info.id,
            "batches": self._batches,
            "read_us": self._read_ns // 1000,
            "collate_us": self._collate_ns // 1000,
            # The part of it that belongs to the batches that were timed.
            "alive_us": alive_ns * self._batches // (self._batches + self._passed_by) // 1000,
            "read_bytes": None if before is None else (_storage_bytes() or before) - before,
            # Of the training process it would be that of the training.
            "cpu_us": None if info is None else int(cpu_s * 1e6),
            "files": list(self._files.names),
        }
        try:
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError:
            pass  # a full disk must not stop a training


class _TimedCollate:
    """A collate function that knows how long it took."""

    def __init__(self, collate: Callable[..., Any]) -> None:
        self._collate = collate
        self.total_ns = 0

    def __call__(self, samples: Any) -> Any:
        start = time.perf_counter_ns()
        try:
            return self._collate(samples)
        finally:
            self.total_ns += time.perf_counter_ns() - start

    def __getattr__(self, name: str) -> Any:
        return getattr(self._collate, name)


def _storage_bytes() -> Optional[int]:
    """Bytes that storage delivered for this process; None where the kernel does not tell."""
    try:
        with open("/proc/self/io", encoding="ascii") as file:
            fields = dict(line.split(": ") for line in file.read().splitlines())
        return int(fields["read_bytes"])
    except (OSError, KeyError, ValueError):
        return None


class _OpenedFiles:
    """Notes some of the files that a worker reads, for naming the volume they are on."""

    def __init__(self, own: str) -> None:
        folders = ("/dev", "/proc", "/sys", sys.prefix, sys.base_prefix, own)
        self._no_data = tuple(os.path.join(folder, "") for folder in folders)
        self.names: Dict[str, None] = {}
        self.full = False

    def __call__(self, event: str, args: Any) -> None:
        """Called by the interpreter at each audited event; cannot be taken off again."""
        if self.full or event != "open" or not isinstance(args[0], str):
            return
        if isinstance(args[-1], int) and args[-1] & os.O_CREAT:
            return  # handing over a batch makes files of its own
        name = os.path.abspath(args[0])
        if not name.startswith(self._no_data):
            self.names[name] = None
            self.full = len(self.names) >= _MOST_FILES


def read_worker_times(folder: str, parent: int) -> List[Dict[str, Any]]:
    """Read what the workers of a process left; the last line of each is the fullest."""
    found = []
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return found
    for name in names:
        if not name.startswith("worker-"):
            continue
        try:
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                line = json.loads(file.read().splitlines()[-1])
        except (OSError, ValueError, IndexError):
            continue
        if line.pop("parent", None) == parent:
            found.append(line)
    return found
