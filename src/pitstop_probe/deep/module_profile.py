"""Some steps by module, at any depth: forward, backward, and what backward runs forward again.

Time is cut at marks: a module is called or returns, a gradient reaches what it gave or leaves what
it took. Between two marks the step is in one module and in one pass, so nothing counts twice and
all of it adds up. On a GPU marks are events of its own time line, read once they have passed:
nothing waits for them.

Modules are found where they are called, so a shared one is a part of whatever called it. One that
is never called (a list, a dictionary) holds those called through it.
"""

import contextlib
import functools
from threading import get_ident
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from pitstop_probe.hooks.patches import Patch, replace, replace_call
from pitstop_probe.steps.step_tracker import StepTracker

FORWARD, BACKWARD, RECOMPUTE = range(3)

_MOST_TIMED = 4096
_MOST_MARKS = 60_000
_MOST_WRITTEN = 256
_MOST_KINDS = 24

# Names of what only wraps a model, which nobody wrote into it.
_WRAPPED = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_OUTERMOST = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel")


class _Node:
    """A module in the place where it was called."""

    __slots__ = (
        "calls",
        "children",
        "depth",
        "identity",
        "kind",
        "name",
        "own",
        "parent",
        "seen",
        "steps",
        "whole",
    )

    def __init__(self, name: str, kind: str, parent: Optional["_Node"]) -> None:
        self.name = name
        self.kind = kind
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.children: Dict[Any, "_Node"] = {}
        self.calls = 0
        self.identity = 0
        self.own = [0, 0, 0]
        self.steps: Dict[int, List[int]] = {}
        self.whole = [0, 0, 0]
        self.seen = False
        """Whether a gradient was seen to pass it."""

    @property
    def caller(self) -> Optional["_Node"]:
        """What called it: the innermost around it that is called itself."""
        node = self.parent
        while node is not None and not node.calls:
            node = node.parent
        return node

    def is_within(self, other: "_Node") -> bool:
        """Whether it is the other, or was called somewhere inside it."""
        node: Optional[_Node] = self
        while node is not None and node.depth > other.depth:
            node = node.parent
        return node is other

    def add_up(self, steps: int) -> None:
        """Sum up what it took with everything inside, each its median over some steps."""
        self.own = _medians(self.steps, steps)
        self.whole = list(self.own)
        self.calls = round(self.calls / steps) or min(1, self.calls)
        for child in self.children.values():
            child.add_up(steps)
            self.whole = [mine + its for mine, its in zip(self.whole, child.whole)]
            self.seen = self.seen or child.seen

    def all(self) -> Iterator["_Node"]:
        """Give it and everything inside, outer ones first."""
        yield self
        for child in self.children.values():
            yield from child.all()


class ModuleProfile:
    """Times every module of some models, in a few steps: one alone may be an odd one."""

    kind = "modules"

    def __init__(self, tracker: StepTracker, torch: Any, models: Sequence[Any]) -> None:
        self._tracker = tracker
        self._torch = torch
        self._device = tracker.device
        self._is_capturing = torch.cuda.is_current_stream_capturing
        self._classes: Dict[Any, None] = {}
        self._roots: Dict[Any, _Node] = {}
        self._nodes: Dict[Tuple[int, int], _Node] = {}
        self._places: Dict[int, List[_Node]] = {}
        self._marks: List[Tuple[Any, int, Optional[_Node], int]] = []
        self._step = 0
        self._outside = _Node("", "", None)
        self._mode = FORWARD
        self._node: Optional[_Node] = None
        self._passes = 0
        self._is_on = False
        self._error: Optional[str] = None
        self._patches: List[Patch] = []
        self._about = module_names(models, self._classes)
        self._kinds = dict(self._about.values())

    def on(self) -> None:
        """Wrap the modules' classes, not them: hooks on a module are copied and saved with it."""
        self._is_on = True
        for kind in self._classes:
            self._patches.append(replace_call(kind, self._around))
        for name in ("backward", "grad"):
            self._patches.append(replace(self._torch.autograd, name, self._backward))

    def off(self) -> None:
        """Take the wrappers off."""
        self._is_on = False
        for patch in reversed(self._patches):
            patch.off()

    def border(self) -> None:
        """Go on with the next step."""
        self._step += 1

    @property
    def is_complete(self) -> bool:
        """Whether the device has passed every mark."""
        return self._device is None or not self._marks or self._device.passed(self._marks[-1][0])

    def values(self, step: int) -> Dict[str, Any]:
        """Give the times as a reading."""
        if self._error is not None:
            raise RuntimeError(self._error)
        if len(self._marks) >= _MOST_MARKS:
            raise RuntimeError("too many calls of modules in a step")
        self._share_out()
        roots = list(self._roots.values())
        for root in (*roots, self._outside):
            root.add_up(self._step + 1)
        wholes = [root.whole for root in roots]
        backward_ns = sum(whole[BACKWARD] + whole[RECOMPUTE] for whole in wholes)
        nodes = [node for root in roots for node in root.all() if any(node.whole)]
        # The model itself, and what wraps it, are the whole.
        nodes = [node for node in nodes if node.name] or nodes[:1]
        # An outer one is never shorter, so those that are kept have their parents with them.
        nodes.sort(key=lambda node: (-sum(node.whole), node.depth))
        places = {id(node): place for place, node in enumerate(nodes[:_MOST_WRITTEN])}
        return {
            "step": step,
            "clock": "host" if self._device is None else "device",
            "forward_us": sum(whole[FORWARD] for whole in wholes) // 1000,
            "backward_us": (backward_ns + self._outside.own[BACKWARD]) // 1000 or None,
            "modules": [_row(node, places) for node in nodes[:_MOST_WRITTEN]],
            "left_out": max(0, len(nodes) - _MOST_WRITTEN),
            "kinds": _by_kind(roots, {kind.__name__ for kind in self._classes if _is_own(kind)}),
        }

    def _share_out(self) -> None:
        """Give each interval between two marks to what it lay in."""
        for (start, mode, node, step), (end, *_) in zip(self._marks, self._marks[1:]):
            owner = self._outside if node is None else node
            owner.steps.setdefault(step, [0, 0, 0])[mode] += self._between_ns(start, end)
        if self._device is not None:
            self._device.release([mark for mark, *_ in self._marks])

    def _between_ns(self, start: Any, end: Any) -> int:
        if self._device is None:
            return end - start
        took_us = self._device.elapsed_us(start, end)
        if took_us is None:
            raise RuntimeError("a mark that the device never passed")
        return max(0, took_us) * 1000

    def _mark(self, mode: int, node: Optional[_Node]) -> None:
        self._mode, self._node = mode, node
        if not self._is_on or len(self._marks) >= _MOST_MARKS:
            return
        try:
            if self._device is None:
                self._marks.append((self._tracker.now(), mode, node, self._step))
            elif not self._is_capturing():  # there an event is recorded into the graph, not made
                self._marks.append((self._device.mark(), mode, node, self._step))
        except Exception as error:  # noqa: BLE001 - the script's call must not fail with ours
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        # Its words alone: an exception holds the frames it passed, and with them the script's own.
        self._is_on, self._error = False, repr(error)

    def _around(self, module: Any, args: Any, kwargs: Any, call: Callable[..., Any]) -> Any:
        is_ours = self._passes or get_ident() == self._tracker.thread
        if not self._is_on or not is_ours or id(module) not in self._about:
            return call(*args, **kwargs)
        here = self._node
        # A class and one it inherits from are both wrapped: the second is the same call.
        if here is not None and here.identity == id(module) and self._mode != BACKWARD:
            return call(*args, **kwargs)
        before = self._mode, here
        try:
            called = self._again(module) if self._passes else self._called(module, here)
            taken = _with_history((args, kwargs))
            self._follow(taken, called, self._left)
            versions = {id(value): value._version for value in taken}
        except Exception as error:  # noqa: BLE001 - an odd argument is the script's right
            self._give_up(error)
            return call(*args, **kwargs)
        self._mark(RECOMPUTE if self._passes else FORWARD, called)
        try:
            output = call(*args, **kwargs)
        finally:
            self._mark(*before)
        with contextlib.suppress(Exception):  # as above; then its backward pass is not split
            # What is passed on as it came (nn.Identity) is not reached here: its gradient is due
            # to the module that made it. What was changed in place has another version.
            made = [v for v in _with_history(output) if versions.get(id(v)) != v._version]
            self._follow(made, called, self._reached)
        return output

    def _called(self, module: Any, parent: Optional[_Node]) -> _Node:
        """Give the node of a module that is called here."""
        identity = id(module)
        found = self._nodes.get((id(parent), identity))
        if found is None:
            path, kind = self._about[identity]
            owner = None if parent is None else self._holder(parent, path)
            found = self._nodes[id(parent), identity] = _Node(path, kind, owner)
            found.identity = identity
            (self._roots if owner is None else owner.children)[identity] = found
            self._places.setdefault(identity, []).append(found)
        found.calls += 1
        return found

    def _holder(self, parent: _Node, path: str) -> _Node:
        """Give what holds a module inside its caller: the caller, or a list, which nobody calls."""
        name = parent.name
        above = name + "." if name else ""
        if not path.startswith(above):
            return parent  # a shared one, which lies elsewhere
        for step in path[len(above) :].split(".")[:-1]:
            name = name + "." + step if name else step
            held = parent.children.get(name)
            if held is None:
                held = parent.children[name] = _Node(name, self._kinds.get(name, ""), parent)
            parent = held
        return parent

    def _again(self, module: Any) -> _Node:
        """Give the node that a module had, where backward runs it again."""
        places = self._places.get(id(module))
        if not places:
            return self._called(module, self._node)
        if self._node is None:
            return places[-1]
        return max(places, key=lambda place: _common_depth(place, self._node))

    def _follow(self, values: List[Any], node: _Node, note: Callable[[_Node], None]) -> None:
        """Have a gradient's arrival noted."""
        for value in values:
            # An odd tensor may refuse: its module's time is then in what is around it.
            with contextlib.suppress(Exception):
                value.register_hook(functools.partial(_note, note, node))

    @property
    def _goes_back(self) -> bool:
        return bool(self._passes) and self._mode == BACKWARD

    def _reached(self, node: _Node) -> None:
        """A gradient has come to what a module gave: the pass is in the module now."""
        node.seen = True
        here = self._node
        if self._goes_back and (here is None or not here.is_within(node)):
            self._mark(BACKWARD, node)

    def _left(self, node: _Node) -> None:
        """The gradient of what a module took is there: the pass has left it."""
        here = self._node
        if self._goes_back and here is not None and here.is_within(node):
            self._mark(BACKWARD, node.caller)

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if not self._is_on or (not self._passes and get_ident() != self._tracker.thread):
                return original(*args, **kwargs)
            before = self._mode, self._node
            self._passes += 1
            if self._passes == 1:
                self._mark(BACKWARD, None)
            try:
                return original(*args, **kwargs)
            finally:
                self._passes -= 1
                if not self._passes:
                    self._mark(*before)

        return backward


def _medians(steps: Dict[int, List[int]], count: int) -> List[int]:
    """Give the median of each pass over so many steps; where there is none it took no time."""
    none = [0, 0, 0]
    by_pass = zip(*(steps.get(step, none) for step in range(count)))
    return [sorted(times)[len(times) // 2] for times in by_pass]


def module_names(
    models: Sequence[Any], classes: Optional[Dict[Any, None]] = None
) -> Dict[int, Tuple[str, str]]:
    """Give name and class of every module of some models, by identity.

    Level by level, so that of very many the outer ones are in. Of several models each name begins
    with its model's class.

    Args:
        models: Whatever the script calls itself.
        classes: Receives the modules' classes.
    """
    names: Dict[int, Tuple[str, str]] = {}
    level = [("" if len(models) == 1 else type(model).__name__, model) for model in models]
    while level and len(names) < _MOST_TIMED:
        for path, module in level:
            names.setdefault(id(module), (path, type(module).__name__))
            if classes is not None:
                classes[type(module)] = None
        level = [
            (_joined(path, name, module), child)
            for path, module in level
            for name, child in (vars(module).get("_modules") or {}).items()
            if child is not None and id(child) not in names
        ]
    return names


def _note(note: Callable[[_Node], None], node: _Node, _: Any) -> None:
    note(node)


def _common_depth(one: _Node, other: Optional[_Node]) -> int:
    while other is not None and not one.is_within(other):
        other = other.parent
    return -1 if other is None else other.depth


def _joined(path: str, name: str, owner: Any) -> str:
    """Name a child as the script does, without what its wrappers are called."""
    is_outermost = name == "module" and type(owner).__name__ in _OUTERMOST
    if is_outermost or name in _WRAPPED:
        return path
    return path + "." + name if path else name


def _row(node: _Node, places: Dict[int, int]) -> Dict[str, Any]:
    forward, backward, again = (took // 1000 for took in node.whole)
    return {
        "name": node.name or node.kind,
        "kind": node.kind,
        "parent": None if node.parent is None else places.get(id(node.parent)),
        "calls": node.calls,
        "forward_us": forward,
        "backward_us": backward + again if node.seen or again else None,
        "recompute_us": again,
    }


def _is_own(kind: Any) -> bool:
    """Whether a class is the script's, or of whatever it uses, and not torch's."""
    return not kind.__module__.startswith("torch.")


def _by_kind(roots: List[_Node], own: Set[str]) -> List[Dict[str, Any]]:
    """Sum up modules of one class, wherever they are; one inside another of it is in that."""
    totals: Dict[str, List[int]] = {}
    for root in roots:
        for node in root.all():
            is_whole = node.parent is None or _is_inside_its_kind(node)
            if is_whole or not node.calls or node.kind not in own:
                continue
            entry = totals.setdefault(node.kind, [0, 0, 0])
            entry[0] += 1
            entry[1] += node.whole[FORWARD]
            entry[2] += node.whole[BACKWARD] + node.whole[RECOMPUTE]
    largest = sorted(totals.items(), key=lambda item: -sum(item[1][1:]))[:_MOST_KINDS]
    return [
        {"kind": kind, "places": places, "forward_us": ahead // 1000, "backward_us": back // 1000}
        for kind, (places, ahead, back) in largest
    ]


def _is_inside_its_kind(node: _Node) -> bool:
    above = node.parent
    while above is not None:
        if above.kind == node.kind:
            return True
        above = above.parent
    return False


def _with_history(values: Any) -> List[Any]:
    """Give the tensors that something made; not the script's own parameters, which outlive us."""
    return [each for each in tensors_in(values) if each.requires_grad and not each.is_leaf]


def tensors_in(value: Any) -> List[Any]:
    """Give every tensor in lists, tuples and dictionaries, however deep."""
    if hasattr(value, "register_hook"):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors_in(item)]
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in tensors_in(item)]
    return []
