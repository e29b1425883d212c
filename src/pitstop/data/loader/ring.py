"""How batches travel from workers to the training process: through memory that is used again.

Torch's own way makes a new file in shared memory for every tensor of every batch. Its pages must
be found and cleared, and the open file must be sent, each time. Here the training process makes
one piece of memory with a few slots, lends a free slot with each request, and the worker writes
the batch into it. A slot is lent again when the last tensor that lies in it is gone, so that a
batch may be kept for as long as anybody likes; where no slot is free, a batch goes torch's way.

Nobody waits and nothing is locked: only the training process gives slots out and takes them back.
"""

import io
import itertools
import math
import mmap
import os
import pickle
import weakref
from collections import deque
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

ALIGNMENT_BYTES: Final = 64

# Spare bytes for rounding up where the tensors of a batch begin.
_SPARE_BYTES: Final = 1 << 14

_RINGS: "weakref.WeakValueDictionary[int, Ring]" = weakref.WeakValueDictionary()


class Slot(NamedTuple):
    """Where a worker may put a batch."""

    ring: int
    path: str
    start: int
    size: int
    number: int


class Parcel(NamedTuple):
    """A batch whose tensors lie in a slot."""

    slot: Slot
    outline: bytes
    """Everything but the tensors."""


class Ring:
    """Slots of one piece of memory, as the training process sees them."""

    def __init__(self, *, slots: int, batch_bytes: int) -> None:
        self.slot_bytes: Final = -(-(batch_bytes + _SPARE_BYTES) // mmap.PAGESIZE) * mmap.PAGESIZE
        self.holds_bytes: Final = batch_bytes
        total = self.slot_bytes * slots
        file = os.memfd_create("pitstop-batches")
        weakref.finalize(self, os.close, file)
        # Taken now: where there is not so much memory, this fails and writing would kill.
        os.posix_fallocate(file, 0, total)
        self._memory = memoryview(mmap.mmap(file, total))
        self._path = f"/proc/{os.getpid()}/fd/{file}"
        self._free = deque(range(slots))
        self._lent: set[int] = set()
        self._number = next(_NUMBERS)
        _RINGS[self._number] = self

    def lend(self) -> Slot | None:
        """Give a free slot to a request; None where there is none."""
        if not self._free:
            return None
        number = self._free.popleft()
        self._lent.add(number)
        return Slot(self._number, self._path, number * self.slot_bytes, self.slot_bytes, number)

    @property
    def is_awaited(self) -> bool:
        """Whether a request has a slot of this ring and was not answered yet."""
        return bool(self._lent)

    def reclaim(self) -> None:
        """Take back the slots of requests that nobody works on any more."""
        self._free.extend(self._lent)
        self._lent.clear()

    def take_back(self, slot: Slot) -> None:
        """Take back a slot that was lent and not used."""
        if slot.number in self._lent:
            self._lent.discard(slot.number)
            self._free.append(slot.number)

    def lease(self, slot: Slot) -> npt.NDArray[np.uint8]:
        """Give the memory of a slot; it is free again when nothing refers to it any more."""
        self._lent.discard(slot.number)
        part = np.frombuffer(self._memory[slot.start : slot.start + slot.size], np.uint8)
        weakref.finalize(part, self._free.append, slot.number).atexit = False
        return part


class Lender:
    """Lends slots of a ring that fits the batches, once it is known how large they are."""

    def __init__(self, slots: int) -> None:
        self._slots = slots if has_rings() else 0
        self._ring: Ring | None = None
        self._outgrown: list[Ring] = []

    def lend(self) -> Slot | None:
        """Give a slot to a request, where there is one."""
        return None if self._ring is None else self._ring.lend()

    def reclaim(self) -> None:
        """Take back the slots of requests that nobody works on any more."""
        self._outgrown.clear()
        if self._ring is not None:
            self._ring.reclaim()

    def fit(self, batch_bytes: int) -> None:
        """See that slots are large enough for such batches from now on."""
        if self._outgrown:
            self._outgrown = [ring for ring in self._outgrown if ring.is_awaited]
        if not self._slots or (self._ring is not None and batch_bytes <= self._ring.holds_bytes):
            return
        # Answers to requests under way will still come in slots of the old one.
        self._outgrown += [] if self._ring is None else [self._ring]
        self._ring = None
        try:
            self._ring = Ring(slots=self._slots, batch_bytes=batch_bytes)
        except OSError:
            # No memory for it: batches go torch's way, which takes it by and by.
            self._slots = 0


def has_rings() -> bool:
    """Whether this system has memory without a name that other processes can open."""
    return hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")  # noqa: PTH112


def pack(batch: Any, slot: Slot) -> Parcel | None:
    """Put a batch into a slot; None where it does not fit or the memory cannot be opened."""
    try:
        packer = _Packer(_memory_of(slot)[slot.start : slot.start + slot.size])
        packer.dump(batch)
    except (OSError, _TooLargeError):
        return None
    return Parcel(slot, packer.outline())


def unpack(parcel: Parcel) -> Any:
    """Give the batch of a parcel; its tensors lie in the slot."""
    ring = _RINGS.get(parcel.slot.ring)
    assert ring is not None, "a parcel came from a ring that is gone"
    return _Unpacker(parcel.outline, ring.lease(parcel.slot)).load()


def take_back(slot: Slot) -> None:
    """Say that a slot that was lent has not been used."""
    ring = _RINGS.get(slot.ring)
    if ring is not None:
        ring.take_back(slot)


class _TooLargeError(Exception):
    pass


class _Packer(pickle.Pickler):
    """Writes down a batch of any make; tensors go into the memory, and their places are noted."""

    def __init__(self, memory: memoryview) -> None:
        self._outline = io.BytesIO()
        super().__init__(self._outline, protocol=5)
        self._memory = memory
        self._end = 0

    def outline(self) -> bytes:
        return self._outline.getvalue()

    def persistent_id(self, obj: Any) -> Any:
        if type(obj) is not Tensor or obj.layout != torch.strided or obj.device.type != "cpu":
            return None  # small and rare, or a class of its own: goes along by value
        if obj.numel() == 0:
            return None
        start = -(-self._end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self._end = start + obj.nbytes
        if self._end > len(self._memory):
            raise _TooLargeError
        _tensor_at(self._memory, start, obj.dtype, tuple(obj.shape)).copy_(obj)
        return start, obj.dtype, tuple(obj.shape)


class _Unpacker(pickle.Unpickler):
    """Reads what a worker of this process wrote, as torch's own way does."""

    def __init__(self, outline: bytes, memory: npt.NDArray[np.uint8]) -> None:
        super().__init__(io.BytesIO(outline))
        self._memory = memory

    def persistent_load(self, pid: Any) -> Tensor:
        return _tensor_at(self._memory, *pid)


def _tensor_at(memory: Any, start: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    count = math.prod(shape)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=start).view(shape)


_NUMBERS: Final = itertools.count()

# The ring that this worker has open: its number, and its memory.
_OPENED: dict[int, memoryview] = {}


def _memory_of(slot: Slot) -> memoryview:
    """Open the memory of a slot in a worker; a file's number may be used again, a ring's is not."""
    memory = _OPENED.get(slot.ring)
    if memory is None:
        _OPENED.clear()
        file = os.open(slot.path, os.O_RDWR)
        try:
            memory = memoryview(mmap.mmap(file, 0))
        finally:
            os.close(file)
        _OPENED[slot.ring] = memory
    return memory
