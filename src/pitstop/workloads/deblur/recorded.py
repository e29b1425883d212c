"""Forward passes recorded as CUDA graphs, and replayed for batches of the same shape.

A pass of VRT starts some 850 kernels, and a host needs longer to start them one by one than a large
GPU needs to run them. Recorded, they are started as a whole. Restoring frames in tiles is the case
for it: all tiles have one shape.

A recording reads weights where they lie, so it sees what an optimizer or an average writes there.
Casts of them are recorded with the rest; autocast's own store of casts, which is emptied while a
recording lives on, is left aside. Recordings are dropped where weights have moved.
"""
# pyright: reportPrivateUsage=false

import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from pitstop.workloads.deblur.data.dataset import ClipBatch

Forward: TypeAlias = Callable[[nn.Module, ClipBatch], Tensor]
"""Takes a model and a batch on its device."""

Run: TypeAlias = Callable[[], Tensor]

Key: TypeAlias = tuple[object, ...]
"""What must agree for a recording to serve: shapes, types, and what autocast computes in."""

MOST_SHAPES: Final = 2
"""Recordings that are kept; each keeps the memory of a pass."""

MOST_NUMBERS: Final = 3 * 2**21
"""Of the frames of a pass that is recorded: eight clips of four frames of 256x256. A host starts
larger ones sooner than a GPU runs them, and their memory would be kept for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Something that can be run again on the same memory."""

    output: Tensor
    """Filled by each run."""
    run: Callable[[], object]


class Recorder(Protocol):
    """Records work on a device."""

    device_type: str

    def record(self, run: Run, device: torch.device) -> Replay:
        """Record what ``run`` starts; it need not be carried out yet.

        Raises:
            RuntimeError: Where it cannot be recorded.
        """
        ...


class CudaRecorder:
    """Records CUDA graphs, each with memory of its own."""

    device_type = "cuda"

    def record(self, run: Run, device: torch.device) -> Replay:
        """Record what ``run`` starts.

        Raises:
            RuntimeError: Where it waits for the device, or memory does not suffice.
        """
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as one that pins batches, may go on allocating meanwhile.
        with torch.cuda.device(device), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            output = run()
        return Replay(output=output, run=graph.replay)


@dataclass(slots=True)
class _Shape:
    """What is known of one shape: first what its pass reads, then its recording."""

    read: Sequence[Tensor] = ()
    """What lies in stores that may be emptied, such as labels of windows; kept, since a recording
    goes on reading it."""
    inputs: ClipBatch | None = None
    replay: Replay | None = None


class RecordedForward:
    """Runs a model as ``forward`` does, by recordings where it can.

    The first batch of a shape runs plainly, which compiles and fills stores; the second one is
    recorded. Batches run plainly for good where recording fails, and the first failure is said.

    Args:
        forward: Reads ``blur`` and ``spikes`` of a batch, and no other part of it.
        recorder: Records on the device; None for CUDA graphs.
    """

    def __init__(self, forward: Forward, recorder: Recorder | None = None) -> None:
        self._forward = forward
        self._recorder: Recorder = CudaRecorder() if recorder is None else recorder
        self.ran = 0
        """Passes in all."""
        self.replayed = 0
        """Passes that were replayed."""
        self._shapes: OrderedDict[Key, _Shape] = OrderedDict()
        self._model: weakref.ref[nn.Module] | None = None
        self._places: tuple[int, ...] = ()
        self._failed = False

    def forget(self) -> None:
        """Drop all recordings; their memory can be had again."""
        self._shapes.clear()

    def of(self, model: nn.Module) -> Callable[[ClipBatch], Tensor]:
        """Give what runs batches by ``model``, whose weights stay where they are meanwhile."""
        if not self._may_record(model):
            return lambda batch: self._plain(model, batch)
        self._know(model)
        return lambda batch: self._run(model, batch)

    def _may_record(self, model: nn.Module) -> bool:
        if model.training or torch.is_grad_enabled():
            return False
        # What a hook does on the host happens once in a recording, and compiled code may have
        # recordings of its own.
        return not _has_any_global_hook() and not any(
            part._forward_hooks or part._forward_pre_hooks or part._compiled_call_impl
            for part in model.modules()
        )

    def _know(self, model: nn.Module) -> None:
        """Forget what was recorded of another model, or of weights that lay elsewhere."""
        if next(model.parameters()).device.type != self._recorder.device_type:
            return
        places = tuple(part.data_ptr() for part in (*model.parameters(), *model.buffers()))
        known = None if self._model is None else self._model()
        if known is not model or places != self._places:
            self.forget()
            self._model, self._places = weakref.ref(model), places

    def _run(self, model: nn.Module, batch: ClipBatch) -> Tensor:
        if not self._can_record(batch.blur):
            return self._plain(model, batch)
        key = _key(batch)
        shape = self._shapes.get(key)
        if shape is None:
            return self._first(model, batch, key)
        self._shapes.move_to_end(key)
        if shape.replay is None and not self._record(model, batch, shape):
            return self._plain(model, batch)
        assert shape.inputs is not None
        assert shape.replay is not None
        for mine, given in zip(_read_of(shape.inputs), _read_of(batch), strict=True):
            mine.copy_(given)
        shape.replay.run()
        self.ran += 1
        self.replayed += 1
        # The next run writes over the output.
        return shape.replay.output.clone()

    def _can_record(self, blur: Tensor) -> bool:
        if self._failed or blur.device.type != self._recorder.device_type:
            return False
        # Tensors without numbers are for planning, not for running.
        return type(blur) is Tensor and blur.numel() <= MOST_NUMBERS

    def _plain(self, model: nn.Module, batch: ClipBatch) -> Tensor:
        self.ran += 1
        try:
            return self._forward(model, batch)
        except torch.OutOfMemoryError:
            if not self._shapes:
                raise
        self.forget()
        return self._forward(model, batch)

    def _first(self, model: nn.Module, batch: ClipBatch, key: Key) -> Tensor:
        with _Reading() as reading, _casting_anew(batch.blur.device):
            output = self._plain(model, batch)
        own = (*model.parameters(), *model.buffers(), *_read_of(batch), output)
        while len(self._shapes) >= MOST_SHAPES:
            self._shapes.popitem(last=False)
        self._shapes[key] = _Shape(read=reading.kept_by_others(own))
        return output

    def _record(self, model: nn.Module, batch: ClipBatch, shape: _Shape) -> bool:
        """Record a pass over memory of its own; say so and give False where it cannot be."""
        device = batch.blur.device
        # In no evaluation's mode: what is made in one, torch's own marks of random numbers too,
        # cannot be written to after it.
        with torch.inference_mode(mode=False), torch.no_grad():
            blur = batch.blur.clone()
            spikes = None if batch.spikes is None else batch.spikes.clone()
            inputs = replace(batch, blur=blur, sharp=blur, spikes=spikes)

            def run() -> Tensor:
                with _casting_anew(device):
                    return self._forward(model, inputs)

            try:
                shape.replay = self._recorder.record(run, device)
            except RuntimeError as error:
                self._give_up(batch, error)
                return False
        shape.inputs = inputs
        return True

    def _give_up(self, batch: ClipBatch, error: RuntimeError) -> None:
        self._failed = True
        self.forget()
        warnings.warn(
            f"passes of shape {tuple(batch.blur.shape)} are not recorded as CUDA graphs and run "
            f"slower: {str(error).splitlines()[0]}",
            RuntimeWarning,
            stacklevel=2,
        )


class _Reading(TorchDispatchMode):
    """Remembers which tensors operations read, without keeping them."""

    def __init__(self) -> None:
        super().__init__()
        self._read: dict[int, weakref.ref[Tensor]] = {}

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for part in pytree.tree_leaves((args, kwargs)):
            if isinstance(part, Tensor):
                self._read[id(part)] = weakref.ref(part)
        return func(*args, **(kwargs or {}))

    def kept_by_others(self, known: Sequence[Tensor]) -> list[Tensor]:
        """Those that are still there after the pass, other than ``known``."""
        own = {id(part) for part in known}
        alive = [ref() for ref in self._read.values()]
        return [part for part in alive if part is not None and id(part) not in own]


def _casting_anew(device: torch.device) -> torch.autocast:
    """Autocast as it is, without its store of weights that are cast already."""
    return torch.autocast(
        device.type,
        dtype=torch.get_autocast_dtype(device.type),
        enabled=torch.is_autocast_enabled(device.type),
        cache_enabled=False,
    )


def _read_of(batch: ClipBatch) -> list[Tensor]:
    return [batch.blur] if batch.spikes is None else [batch.blur, batch.spikes]


def _key(batch: ClipBatch) -> Key:
    kind = batch.blur.device.type
    autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    parts = [(part.shape, part.dtype, part.device) for part in _read_of(batch)]
    return (*parts, autocast)
