"""Where torch is observed: models, gradients, optimizers, copies, waits, collectives, saves.

Each function puts wrappers around a few of torch's own entry points and gives back patches, to take
them off. Wrappers pass everything through, results and exceptions alike, and cost around a
microsecond. A compiler that traces one finds no more than what it stands in place of.
"""

import contextlib
import functools
import gc
import importlib
import os
import sys
import weakref
from threading import get_ident
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

from pitstop_probe.forks import keep_for_parent
from pitstop_probe.hooks.patches import Patch, Undo, once_imported, replace, tracing_test
from pitstop_probe.stacks.stack import OWN, Stack
from pitstop_probe.steps.parts import (
    ALWAYS_OUTSIDE,
    BEFORE_LOSS,
    CLOSURE,
    EVAL,
    HOST,
    TRAIN,
    Noted,
    Unset,
    after_aside,
)
from pitstop_probe.steps.samples import batch_size, puts_time_first
from pitstop_probe.steps.step_tracker import StepTracker, Undecided

_COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
)

# Those that are not torch's own, or not loaded with it: module, who has them, what they are called.
_SAVERS = (
    ("safetensors.torch", ("",), ("save_file", "save_model")),
    (
        "torch.distributed.checkpoint",
        ("", "state_dict_saver"),
        ("save", "async_save", "save_state_dict"),
    ),
    ("transformers.modeling_utils", ("PreTrainedModel",), ("save_pretrained",)),
)

_WAITS = ("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__")


def part_of(torch: Any, name: str) -> Any:
    """Give a submodule of torch; some hide theirs behind a function of the same name."""
    return importlib.import_module("{}.{}".format(torch.__name__, name))


def timed(
    tracker: StepTracker, kind: str, is_traced: Callable[[], bool], *, keeps_loss: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Wrap a function so that its calls are regions; one inside another is part of it.

    Args:
        tracker: Receives what is observed.
        kind: What its calls are.
        is_traced: What `tracing_test` gives.
        keeps_loss: It is given the loss, which is kept when somebody wants it.
    """
    # What lies outside steps is noted in every step.
    is_part = kind not in ALWAYS_OUTSIDE

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if is_traced():
                return original(*args, **kwargs)
            if keeps_loss and tracker.wants_loss:
                _keep_loss(tracker, args)
            if not tracker.is_sampling and is_part and get_ident() == tracker.thread:
                around, tracker.at = tracker.at, kind
                try:
                    return original(*args, **kwargs)
                finally:
                    tracker.at, tracker.last_kind = around, kind
                    if tracker.is_sampling:  # a border lay in there, or something to be noted
                        tracker.leave(kind)
            region = None if tracker.open and tracker.inside(kind) else tracker.begin(kind)
            if region is None:
                return original(*args, **kwargs)
            try:
                return original(*args, **kwargs)
            finally:
                tracker.end(region)

        return wrapper

    return make


def _keep_loss(tracker: StepTracker, args: Any) -> None:
    """Keep the loss that a backward pass begins with; what it does inside begins with another."""
    inside = tracker.at == "backward" or tracker.inside("backward")
    if tracker.recorded is not None:
        tracker.recorded.has_gradients = True  # into a graph: there is no loss yet
    elif args and not inside and tracker.is_mine and getattr(args[0], "ndim", 1) == 0:
        tracker.loss = args[0].detach()


def hook_functions(tracker: StepTracker, torch: Any) -> List[Patch]:
    """Observe what is a function: backward passes, clipping, saving, collectives."""
    is_traced = tracing_test(torch)
    save, zero_grad = (timed(tracker, kind, is_traced) for kind in ("checkpoint", "zero_grad"))
    patches = [
        replace(torch.autograd, "backward", timed(tracker, "backward", is_traced, keeps_loss=True)),
        replace(torch.autograd, "grad", timed(tracker, "backward", is_traced)),
        replace(torch, "save", save),
        replace(torch.optim.Optimizer, "zero_grad", zero_grad),
        replace(torch.nn.Module, "zero_grad", zero_grad),
        *[
            once_imported(module, functools.partial(_replace_all, owners, names, save))
            for module, owners, names in _SAVERS
        ],
    ]
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        make = timed(tracker, "clip", is_traced)
        patches += [
            replace(torch.nn.utils, name, make),
            replace(part_of(torch, "nn.utils.clip_grad"), name, make),
        ]
    if torch.distributed.is_available():
        make = timed(tracker, "sync", is_traced)
        patches += [replace(torch.distributed, name, make) for name in _COLLECTIVES]
    return patches


def _replace_all(
    owners: Sequence[str], names: Sequence[str], make: Callable[[Any], Any], module: Any
) -> List[Patch]:
    """Put `make(original)` in the place of whatever goes by such a name in a module."""
    found = [getattr(module, owner, None) if owner else module for owner in owners]
    return [replace(owner, name, make) for owner in found for name in names]


class Optimizers:
    """Observes every optimizer's step, whoever made it.

    Args:
        tracker: Receives what is observed.
        torch: The script's torch.
        on_new: Called when one has stepped for the first time, the first of all excepted.
    """

    def __init__(
        self, tracker: StepTracker, torch: Any, on_new: Callable[[], None] = lambda: None
    ) -> None:
        self.seen: Dict[int, Any] = weakref.WeakValueDictionary()  # type: ignore[assignment]
        """Optimizers that stepped, while they live."""
        self._known: Set[int] = set()
        self._tracker = tracker
        self._on_new = on_new
        self._is_traced = tracing_test(torch)
        self._around: Optional[str] = None
        self._nests = False
        self._is_new = False
        self._is_stepping = False
        self.is_inside = False
        """Whether a step of one is under way: what its closure does is part of it."""
        self._hooks = hooks = part_of(torch, "optim.optimizer")
        self.patches: List[Patch] = [
            Patch(lambda: hooks.register_optimizer_step_pre_hook(self._before).remove),
            Patch(self._put_after),
        ]
        self.scaled = False
        for scaler in _scalers(torch):
            self.patches.append(replace(scaler, "step", self._scaler))

    def forked(self) -> None:
        """Forget the parent's optimizers, in a process just forked; those that step are met."""
        self.seen = weakref.WeakValueDictionary()  # type: ignore[assignment]
        self._known = set()
        self._nests = self._is_new = False

    def _put_after(self) -> Undo:
        handle = self._hooks.register_optimizer_step_post_hook(self._after)

        def undo() -> None:
            if self._is_stepping:
                # torch goes through its hooks right now: none may go, but ours may do nothing.
                self._hooks._global_optimizer_post_hooks[handle.id] = _ignore
            else:
                handle.remove()

        return undo

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        if self._is_traced():
            return None
        self.is_inside = True
        tracker = self._tracker
        around = tracker.at
        if around == "optimizer" or (tracker.open and tracker.inside("optimizer")):
            # Inside another's step, or its own class's; or after one that raised, whose end has
            # to come with this one's.
            self._nests = True
            self._meet(optimizer)
            return None
        if tracker.is_sampling:
            return None if tracker.begin("optimizer") is None else self._closed_over(args, kwargs)
        if get_ident() == tracker.thread:
            self._around, tracker.at = around, "optimizer"
        return None

    def _closed_over(self, args: Any, kwargs: Any) -> Any:
        """Give the arguments of a step with its closure observed; None where it has none."""
        closure = args[1] if len(args) > 1 else kwargs.get("closure") if kwargs else None
        if closure is None or not callable(closure):
            return None
        # Its passes are parts of their own, and its Python is not the optimizer's.
        observed = timed(self._tracker, CLOSURE, self._is_traced)(closure)
        if len(args) > 1:
            return (args[0], observed, *args[2:]), kwargs
        return args, {**kwargs, "closure": observed}

    def _after(self, optimizer: Any, *_: Any) -> None:
        if self._is_traced() or self._is_within_another():
            return
        self.is_inside = False
        tracker, identity = self._tracker, id(optimizer)
        if tracker.steps_by(identity, self._around):
            return
        if get_ident() == tracker.thread:
            if tracker.at == "optimizer":
                tracker.at, tracker.last_kind = self._around, "optimizer"
            if tracker.open:
                tracker.leave("optimizer")
        self._meet(optimizer)
        self._stepped(identity)
        is_new, self._is_new = self._is_new, False
        if is_new and tracker.steps and tracker.is_mine:
            self._on_new()

    def _is_within_another(self) -> bool:
        if self._nests:
            self._nests = _is_within_itself(sys._getframe(2))  # pyright: ignore[reportPrivateUsage]
        return self._nests

    def _stepped(self, identity: int) -> None:
        self._is_stepping = True
        try:
            self._tracker.stepped(identity)
        finally:
            self._is_stepping = False

    def _meet(self, optimizer: Any) -> None:
        """Keep an optimizer that steps for the first time."""
        identity = id(optimizer)
        if identity not in self._known:
            self._is_new = True
            self._known.add(identity)
            self.seen[identity] = optimizer
            weakref.finalize(optimizer, self._known.discard, identity)

    def _scaler(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_traced():
                return original(scaler, optimizer, *args, **kwargs)
            tracker = self._tracker
            before = tracker.steps, tracker.step_ends.others
            began = tracker.raw is not None
            self.scaled = self.scaled or bool(scaler.is_enabled())
            result = original(scaler, optimizer, *args, **kwargs)
            # Gradients were not finite, so the update was left out; the step is over all the same.
            was_left_out = before == (tracker.steps, tracker.step_ends.others)
            if began and was_left_out and id(optimizer) in self.seen:
                tracker.stepped(id(optimizer))
            return result

        return step


def _ignore(*_: Any) -> None:
    pass


def _is_within_itself(frame: Any) -> bool:
    """Whether a function was called by itself, however far away."""
    code = frame.f_code
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code is code:
            return True
    return False


def _scalers(torch: Any) -> List[Any]:
    scalers = [getattr(torch.amp, "GradScaler", None), torch.cuda.amp.GradScaler]
    # The older class inherits the newer one's step; wrapping both would end a step twice.
    owners = [scaler for scaler in scalers if scaler is not None and "step" in vars(scaler)]
    return owners[:1]


class Exchanges:
    """Observes how DDP exchanges gradients, through its own counters."""

    def __init__(self) -> None:
        self.calls = 0
        """Forward passes whose gradients were exchanged."""
        self._module: Any = None

    def tracker(self, module: Any) -> bool:
        """Have a module that exchanges gradients time it now and then; False where none is."""
        sample = getattr(module, "_set_ddp_runtime_logging_sample_rate", None)
        if sample is None:
            return False
        self._module = module
        sample(_EXCHANGES_TIMED_EVERY)
        return True

    def summary(self, steps: int) -> Optional[Dict[str, Any]]:
        """Give the means of an exchange; None where none was timed."""
        data = {} if self._module is None else self._module._get_ddp_logging_data()
        exchange_ns = data.get("avg_backward_comm_time", 0)
        if not exchange_ns or not steps:
            return None
        return {
            "backward_us": data.get("avg_backward_compute_time", 0) / 1000,
            "exchange_us": exchange_ns / 1000,
            "overlapped_us": data.get("avg_backward_compute_comm_overlap_time", 0) / 1000,
            "exchanges_per_step": self.calls / steps,
        }


_EXCHANGES_TIMED_EVERY = 10


class Models:
    """Observes the modules that the script calls itself; those inside them are theirs.

    Which they are is seen in a few steps, with the calls of all likely classes wrapped; then only
    those found stay so, at two microseconds a step. Hooks on the modules would be copied and saved
    along with them, and global ones make torch.compile warn.
    """

    def __init__(self, tracker: StepTracker, torch: Any, stack: Optional[Stack] = None) -> None:
        self._tracker = tracker
        self._torch = torch
        self._stack = Stack() if stack is None else stack
        self.called: Dict[int, Any] = weakref.WeakValueDictionary()  # type: ignore[assignment]
        """Modules called from outside, by identity."""
        self.names: Dict[str, None] = {}
        """Their classes, also of those that are gone."""
        self.autocast: Optional[str] = None
        """Format that autocast was last seen to use in a forward pass."""
        self.exchanges = Exchanges()
        self._autocast_read = False
        self._known: Set[int] = set()
        self._trained: Set[int] = set()
        self._losses: Set[int] = set()
        # Those that were seen to make batches, by the code that called them; and those without
        # gradients of their own that were called for something else than the loss: for what.
        self._feeding: Dict[int, Set[int]] = {}
        self._asides: Dict[int, str] = {}
        # Losses of what the script computed without calling a module.
        self._after_own: Set[int] = set()
        # Code of methods called forward, and the modules that have it; while they are sought.
        self._forwards: Dict[Any, List[Any]] = {}
        self._exchanging: Set[int] = set()
        # Those whose first dimension may be time.
        self._time_first: Set[int] = set()
        # Those that train and exchange nothing: of their calls there is nothing left to find out.
        self._usual: Set[int] = set()
        self._is_traced = tracing_test(torch)
        self._wrapped: Dict[Any, Patch] = {}
        self._searches = 0
        self.searching = False
        self._modes: List[Patch] = []

    def forked(self) -> None:
        """Forget the parent's exchanges, in a process just forked."""
        keep_for_parent(self.exchanges)
        self.exchanges = Exchanges()
        self._exchanging = set()

    def search(self) -> None:
        """Wrap every class that may be called from outside.

        Those of modules in no other, and of the next two levels: a module that only holds others
        is never called itself.
        """
        # Before the first border nothing is seen of a call, but a compiler that meets a wrapper
        # compiles anew when that comes off.
        if self._searches >= _MOST_SEARCHES or self._tracker.raw is None:
            return
        self._searches += 1
        self.searching = True
        for module in _outer_modules(self._torch):
            self.wrap(type(module))
            self._forwards.setdefault(_forward_code(module), []).append(weakref.ref(module))
        # A border is no part of a pass: what is under way here is a loop of steps.
        frame: Any = sys._getframe()  # pyright: ignore[reportPrivateUsage]
        while frame is not None:
            self._forwards.pop(frame.f_code, None)
            frame = frame.f_back

    def settle(self) -> None:
        """Keep observing the classes that were called from outside, and no others."""
        self.searching = False
        self._forwards.clear()
        kinds = {type(module) for module in list(self.called.values())}
        for kind in [kind for kind in self._wrapped if kind not in kinds]:
            self._wrapped.pop(kind).off()

    @property
    def patches(self) -> List[Patch]:
        """What stands in the place of calls at present."""
        return [*self._modes, *self._wrapped.values()]

    @property
    def outermost(self) -> List[Any]:
        """Called modules with parameters, each in no other of them, the largest first."""
        called = [model for model in list(self.called.values()) if _parameter_count(model)]
        inner = {id(part) for model in called for part in model.modules() if part is not model}
        alone = [model for model in called if id(model) not in inner]
        return sorted(alone, key=_parameter_count, reverse=True)[:_MOST_MODELS]

    def wrap(self, kind: Any) -> None:
        """Observe the calls of a class of modules."""
        if not self._modes:
            self._modes.append(replace(self._torch.nn.Module, "train", self._set_mode))
        if kind not in self._wrapped:
            self._wrapped[kind] = replace(kind, "__call__", lambda _: self._observed(kind))

    def _set_mode(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Observe who sets a model that trains to evaluate, and back; `eval` calls `train`.

        A model may then sample by a method of its own, which is no call of it.
        """

        @functools.wraps(original)
        def train(module: Any, *args: Any, **kwargs: Any) -> Any:
            was_training = getattr(module, "training", None)
            result = original(module, *args, **kwargs)
            # Every part of a model comes by here; compilers trace it.
            if id(module) in self._trained and not self._is_traced():
                is_training = module.training
                if is_training != was_training:
                    self._tracker.mode(TRAIN if is_training else EVAL)
            return result

        return train

    def _observed(self, kind: Any) -> Callable[..., Any]:
        """Make a call that observes the one it replaces, found in the way of `replace_call`."""
        own = vars(kind).get("__call__")
        tracker, is_traced = self._tracker, self._is_traced
        observe, glance = self._observe, self._glance
        is_loss = _is_named_loss(kind)

        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            original = (
                super(kind, module).__call__ if own is None else functools.partial(own, module)
            )
            around = tracker.at
            # Most calls are of modules inside others: these must come first.
            if is_traced() or around in _INNER or (tracker.open and _within(tracker.open)):
                return original(*args, **kwargs)
            if tracker.is_sampling or get_ident() != tracker.thread:
                return observe(module, original, args, kwargs)
            is_plain_loss = is_loss and tracker.last_kind in BEFORE_LOSS
            part = "loss" if is_plain_loss else glance(module, args, kwargs)
            if part is None:
                return observe(module, original, args, kwargs)
            tracker.at = part
            try:
                return original(*args, **kwargs)
            finally:
                tracker.at, tracker.last_kind = around, after_aside(tracker.last_kind, part)
                if tracker.is_sampling:
                    tracker.leave(part)

        return call

    def _observe(self, module: Any, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Make a call from outside, noted where it is to be."""
        is_own = self.searching and self._is_own_computing(module, args)
        region = None if is_own else self._begin(module, args, kwargs)
        if region is None:
            return original(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
            if self.searching or self._is_doubtful(id(module)):
                try:
                    self._judge(region, module, self._samples(id(module), args, kwargs), result)
                except Exception:  # noqa: BLE001, S110 - an odd result is the script's right
                    pass
            return result
        finally:
            self._tracker.end(region)

    def _is_own_computing(self, module: Any, args: Any) -> bool:
        """Whether a call is part of a pass that is made without calling a model.

        It comes out of a method called forward that the script called by that name; or what it is
        given was computed by the script itself, and it has nothing to learn. A step of such calls
        alone is one in which no model was called.
        """
        raw = self._tracker.raw
        if raw is None or raw.calls or not self._torch.is_grad_enabled():
            return False
        try:
            if self._is_in_forward(sys._getframe(3)):  # pyright: ignore[reportPrivateUsage]
                return True
            is_step = _is_loss(module) and any(map(_is_computed, args))
            is_loss = is_step and _is_named_loss(type(module))
        except Exception:  # noqa: BLE001 - an odd module or argument is the script's right
            return False
        if is_loss:
            self._after_own.add(id(module))
        return is_step and not is_loss

    def _is_in_forward(self, frame: Any) -> bool:
        """Whether a method called forward is under way; whose it is is then known."""
        while frame is not None:
            modules = self._forwards.get(frame.f_code)
            if modules is not None:
                for module in [found() for found in modules]:
                    if module is not None and id(module) not in self._known:
                        self._take_up(id(module), module)
                self._stack.learn_model_call(frame.f_back)
                return True
            frame = frame.f_back
        return False

    def _is_doubtful(self, identity: int) -> bool:
        """Whether only the result of a call tells what it was for."""
        return identity in self._losses or identity in self._feeding

    def _judge(self, region: Noted, module: Any, samples: Optional[int], result: Any) -> None:
        """Say what a call was for, by what came of it: without gradients it may make a batch."""
        identity, frame = id(module), sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
        if has_gradient(result):
            self._asides.pop(identity, None)
            if self._is_doubtful(identity) and region[0] == "forward":
                self._note_training(identity, module, samples)
            if self.searching and region[0] == "forward":
                self._stack.learn_model_call(frame)
        elif region[0] == "loss":
            # An evaluation's loss has none either.
            if self._torch.is_grad_enabled():
                region[0] = self._asides[identity] = self._stack.purpose(frame) or HOST
        elif identity in self._losses:
            region[0], region[3] = "data", None
            self._asides[identity] = "data"
        elif self._stack.makes_batch(frame):
            region[0], region[3] = "data", None
            self._feeding.setdefault(identity, set()).add(self._stack.caller(frame))
            self._usual.discard(identity)

    def _glance(self, module: Any, args: Any, kwargs: Any) -> Optional[str]:
        """Name the part that a call from outside is, and count it, in a step that is not noted.

        None where it is to be noted all the same, for it evaluates; and for an odd module.
        """
        tracker, identity = self._tracker, id(module)
        raw = tracker.raw
        is_usual = identity in self._usual and module.training
        if is_usual and raw is not None and self._torch.is_grad_enabled():
            try:
                samples = args[0].shape[0]
            except Exception:  # noqa: BLE001 - not a tensor, or a nested one, which has no shape
                samples = self._samples(identity, args, kwargs)
            raw.calls.append((identity, samples))
            return "forward"
        try:
            if identity not in self._known:
                self._take_up(identity, module)
            other = self._other_than_forward(identity)
            if other is not None:
                return other
            purpose = self._purpose(identity, module)
            if purpose is not TRAIN:
                return None if purpose is not None else "forward"
            self._note_training(identity, module, self._samples(identity, args, kwargs))
        except Exception:  # noqa: BLE001 - an odd module or argument is the script's right
            return None
        return "forward"

    def _begin(self, module: Any, args: Any, kwargs: Any) -> Optional[Noted]:
        """Begin a region for a call from outside; None on another thread."""
        tracker = self._tracker
        if get_ident() != tracker.thread or not tracker.active:
            return None
        try:
            identity = id(module)
            if identity not in self._known:
                self._take_up(identity, module)
            is_after = tracker.last_kind in BEFORE_LOSS or identity in self._after_own
            if identity in self._losses and is_after:
                return tracker.begin("loss")
            purpose = self._purpose(identity, module)
            if purpose is TRAIN and not self._is_doubtful(identity):
                self._note_training(identity, module, self._samples(identity, args, kwargs))
        except Exception:  # noqa: BLE001 - an odd module or argument is the script's right
            return None
        return tracker.begin("forward", purpose)

    def _other_than_forward(self, identity: int) -> Optional[str]:
        """What a call is for that is no forward pass; None where it is one."""
        callers = self._feeding.get(identity)
        if callers is not None:
            frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
            return "data" if self._stack.caller(frame) in callers else None
        aside = self._asides.get(identity)
        is_after = self._tracker.last_kind in BEFORE_LOSS or identity in self._after_own
        if aside is None and identity in self._losses and is_after:
            return "loss"
        return aside

    def _samples(self, identity: int, args: Any, kwargs: Any) -> Optional[int]:
        return batch_size(args, kwargs, may_be_sequences=identity in self._time_first)

    def _note_training(self, identity: int, module: Any, samples: Optional[int]) -> None:
        self._tracker.count(identity, samples)
        if identity in self._exchanging:
            self.exchanges.calls += module.require_backward_grad_sync
        elif samples is not None and identity in self._trained and identity not in self._feeding:
            self._usual.add(identity)
        if not self._autocast_read:
            self._read_autocast()

    def _take_up(self, identity: int, module: Any) -> None:
        """Learn of a module that is called from outside for the first time."""
        self._known.add(identity)
        weakref.finalize(module, self._forget, identity)
        self.called[identity] = module
        self.names[type(module).__name__] = None
        if _is_loss(module):
            self._losses.add(identity)
        if puts_time_first(module):
            self._time_first.add(identity)
        if self.exchanges.tracker(module):
            self._exchanging.add(identity)

    def _forget(self, identity: int) -> None:
        self._asides.pop(identity, None)
        self._feeding.pop(identity, None)
        for known in (
            *(self._known, self._trained, self._losses, self._after_own),
            *(self._exchanging, self._time_first, self._usual),
        ):
            known.discard(identity)

    def _purpose(self, identity: int, module: Any) -> Any:
        """Tell a training pass from an evaluation: the detail of its region.

        None is for whatever its batch was fetched for. Without gradients that is all there is to
        know of a module that never trains (a teacher, an average of weights) and of one that is
        set to train (samples for a critic, or an evaluation that does not care).
        """
        if module.training:
            if identity not in self._trained:
                self._trained.add(identity)
        elif identity in self._trained:
            if not self._torch.is_grad_enabled():
                return EVAL
            return TRAIN if identity in self._tracker.trains else Unset(identity)
        return TRAIN if self._torch.is_grad_enabled() else None

    def reread_autocast(self) -> None:
        """Read autocast at the next forward pass; every one would cost a microsecond."""
        self._autocast_read = False

    def _read_autocast(self) -> None:
        self._autocast_read = True
        for is_enabled, dtype in autocasts(self._torch):
            if is_enabled():
                self.autocast = str(dtype()).replace("torch.", "")
                return


def autocasts(torch: Any) -> List[Tuple[Callable[[], bool], Callable[[], Any]]]:
    """Say of each device how to ask whether autocast is on and for its format."""
    if hasattr(torch, "get_autocast_dtype"):
        is_enabled, dtype = torch.is_autocast_enabled, torch.get_autocast_dtype
        return [
            (functools.partial(is_enabled, device), functools.partial(dtype, device))
            for device in ("cuda", "cpu")
        ]
    # Before 2.4 there was a function for each.
    return [
        (torch.is_autocast_enabled, torch.get_autocast_gpu_dtype),
        (torch.is_autocast_cpu_enabled, torch.get_autocast_cpu_dtype),
    ]


def _outer_modules(torch: Any) -> List[Any]:
    """Modules that are in no other, and two levels of what they hold; compiled ones among them."""
    kind = torch.nn.Module
    modules = [found for found in gc.get_objects() if issubclass(type(found), kind)]
    inner = {id(child) for module in modules for child in _children(module)}
    level = [module for module in modules if id(module) not in inner]
    found = list(level)
    for _ in range(2):
        level = [child for module in level for child in _children(module)]
        found += level
    return found


def _forward_code(module: Any) -> Any:
    """The code of a module's own forward; that of a decorator's wrapper belongs to many more."""
    forward = getattr(type(module), "forward", None)
    for _ in range(_MOST_DECORATORS):
        forward = getattr(forward, "__wrapped__", forward)
    return getattr(forward, "__code__", None)


def _children(module: Any) -> List[Any]:
    """What a module holds; one half made holds nothing, and one may call its own so."""
    held = vars(module).get("_modules")
    return [] if held is None else [child for child in held.values() if child is not None]


_MOST_SEARCHES = 8
_MOST_MODELS = 8
_MOST_DECORATORS = 8
# Modules called in there are theirs; those of a dataset make batches.
_INNER = frozenset(("forward", "loss", "backward", "data", "loader start", HOST))


def _within(regions: List[Any]) -> bool:
    """Whether one of the open regions is a module's."""
    for region in regions:  # noqa: SIM110 - the hot path: `any` takes three times as long
        if region[0] in _INNER:
            return True
    return False


def _is_loss(module: Any) -> bool:
    return _is_named_loss(type(module)) or next(iter(module.parameters()), None) is None


def _is_named_loss(kind: Any) -> bool:
    return kind.__name__.lower().endswith(("loss", "criterion"))


def has_gradient(value: Any, depth: int = 0) -> bool:
    """Whether there may be a tensor with gradients in there."""
    if isinstance(value, _HOLDERS):
        items = value.values() if isinstance(value, dict) else value
        return depth >= _DEEPEST or any(has_gradient(item, depth + 1) for item in items)
    if value is None or isinstance(value, (bool, int, float, str)):
        return False
    return bool(getattr(value, "requires_grad", True))


def _is_computed(value: Any) -> bool:
    """Whether a tensor came of what has gradients."""
    return getattr(value, "grad_fn", None) is not None


def _parameter_count(module: Any) -> int:
    try:
        return sum(parameter.numel() for parameter in module.parameters())
    except ValueError:  # a parameter whose size is not known yet
        return 0


_DEEPEST = 3
_HOLDERS = (dict, list, tuple)


class Recomputation:
    """Observes activations that are computed again during the backward pass."""

    def __init__(self, tracker: StepTracker, torch: Any) -> None:
        self._tracker = tracker
        self.seen = False
        checkpoint = part_of(torch, "utils.checkpoint")
        self.patches: List[Patch] = [
            replace(checkpoint.CheckpointFunction, "backward", self._reentrant),
        ]
        frame = getattr(checkpoint, "_CheckpointFrame", None)
        if frame is not None:
            self.patches.append(replace(frame, "__init__", self._frame))

    def _frame(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def init(frame: Any, recompute_fn: Any, *args: Any, **kwargs: Any) -> None:
            self.seen = True
            original(frame, self._timed(recompute_fn), *args, **kwargs)

        return init

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        tracker = self._tracker

        def recompute(*args: Any, **kwargs: Any) -> Any:
            start = tracker.now()
            try:
                return function(*args, **kwargs)
            finally:
                tracker.recomputed(start, tracker.now())

        return recompute

    def _reentrant(self, original: Callable[..., Any]) -> Any:
        """The old way computes again and goes backward in one function; the first is ours."""
        tracker = self._tracker

        def backward(ctx: Any, *grads: Any) -> Any:
            self.seen = True
            start = tracker.now()
            function = ctx.run_function

            def run(*args: Any) -> Any:
                result = function(*args)
                tracker.recomputed(start, tracker.now())
                return result

            ctx.run_function = run
            try:
                return original(ctx, *grads)
            finally:
                ctx.run_function = function

        return staticmethod(backward)


class Compilation:
    """Observes torch.compile at work: its time, and what it compiled."""

    def __init__(self, tracker: StepTracker) -> None:
        self._tracker = tracker
        self.total_us = 0
        self._began = 0
        self._handler: Any = None

    def listen(self, module: Any) -> None:
        """Ask the compiler's own module of callbacks to be told; older ones have none."""
        handler: Any = getattr(module, "callback_handler", None)
        if hasattr(handler, "register_start_callback"):
            self._handler = handler
            handler.register_start_callback(self._start)
            handler.register_end_callback(self._end)

    def remove(self) -> None:
        """Stop being told."""
        handler, self._handler = self._handler, None
        if handler is not None:
            # Resetting the compiler takes everybody's off.
            with contextlib.suppress(ValueError):
                handler.remove_start_callback(self._start)
            with contextlib.suppress(ValueError):
                handler.remove_end_callback(self._end)

    def _start(self, *_: Any) -> None:
        self._began = self._tracker.now()
        self._tracker.enter("compile")

    def _end(self, *_: Any) -> None:
        self.total_us += (self._tracker.now() - self._began) // 1000
        self._tracker.leave("compile")


class Waits:
    """Observes calls in which the host waits for a GPU, and copies to it; by Python line."""

    def __init__(self, tracker: StepTracker, torch: Any) -> None:
        self._tracker = tracker
        self._torch_folder = os.path.dirname(torch.__file__)
        self._lines: Dict[Tuple[str, int, str], List[int]] = {}
        self._undecided = Undecided(tracker)
        tensor = torch.Tensor
        self.patches: List[Patch] = [replace(tensor, name, self._wait(name)) for name in _WAITS]
        self.patches.append(replace(tensor, "to", self._move))
        self.patches.append(replace(tensor, "cuda", self._move))
        cuda = torch.cuda
        for owner, name in (
            (cuda, "synchronize"),
            (cuda.Event, "synchronize"),
            (cuda.Stream, "synchronize"),
        ):
            self.patches.append(replace(owner, name, self._synchronize))

    def forget(self) -> None:
        """Begin counting anew, after warm-up."""
        self._lines.clear()
        self._undecided.clear()

    @property
    def lines(self) -> Dict[Tuple[str, int, str], List[int]]:
        """Calls and nanoseconds by file, line and operation, in steps that were handed over."""
        self._settle()
        return self._lines

    def _settle(self) -> None:
        for place, took in self._undecided.decided():
            entry = self._lines.setdefault(place, [0, 0])
            entry[0] += 1
            entry[1] += took

    def _wait(self, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def call(tensor: Any, *args: Any, **kwargs: Any) -> Any:
                if not tensor.is_cuda or not self._tracker.is_mine:
                    return original(tensor, *args, **kwargs)
                return self._timed(name, lambda: original(tensor, *args, **kwargs))

            return call

        return make

    def _synchronize(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self._tracker.is_mine:
                return original(*args, **kwargs)
            return self._timed("synchronize", lambda: original(*args, **kwargs))

        return call

    def _move(self, original: Callable[..., Any]) -> Callable[..., Any]:
        tracker = self._tracker

        @functools.wraps(original)
        def call(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if not tracker.is_sampling:
                return original(tensor, *args, **kwargs)
            start = tracker.now()
            moved = original(tensor, *args, **kwargs)
            if moved is tensor:
                return moved
            arrived = moved.is_cuda
            if arrived != tensor.is_cuda:
                if arrived:
                    tracker.note("copy", start)
                elif tracker.is_mine:
                    self._count("to", start)
            return moved

        return call

    def _timed(self, name: str, action: Callable[[], Any]) -> Any:
        tracker = self._tracker
        if tracker.inside("wait"):
            return action()
        if not tracker.is_sampling:
            around, tracker.at = tracker.at, "wait"
            try:
                return action()
            finally:
                tracker.at, tracker.last_kind = around, after_aside(tracker.last_kind, "wait")
        start = tracker.now()
        region = tracker.begin("wait")
        try:
            return action()
        finally:
            if region is not None:
                tracker.end(region)
            self._add(name, start)

    def _count(self, name: str, start: int) -> None:
        self._tracker.note("wait", start)
        self._add(name, start)

    def _add(self, name: str, start: int) -> None:
        raw = self._tracker.raw
        if raw is None or not raw.sampled:
            return  # the steps that were sampled stand for all
        file, line = self._caller()
        if not file.startswith(OWN):
            self._undecided.add(start, ((file, line, name), self._tracker.now() - start))
            self._settle()

    def _caller(self) -> Tuple[str, int]:
        """The innermost line outside torch and the probe."""
        frame: Any = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
        while frame.f_back is not None:
            file = frame.f_code.co_filename
            if file != __file__ and not file.startswith(self._torch_folder):
                break
            frame = frame.f_back
        return frame.f_code.co_filename, frame.f_lineno
