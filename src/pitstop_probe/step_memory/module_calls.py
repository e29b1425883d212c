"""Which module is being called: what is saved inside it is its own."""

from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from pitstop_probe.hooks.patches import Patch, replace
from pitstop_probe.hooks.torch_hooks import autocasts
from pitstop_probe.steps.samples import batch_size, puts_time_first

_DEEPEST = 3


class ModuleCalls:
    """Follows the calls of modules while it is on, which is for a step at a time.

    Blocks are the modules that a model repeats in a list or in sequence and that have modules
    inside: what a script would recompute.

    Args:
        torch: The script's torch.
        on_model: Called with a model that the script calls itself, before the call.
        on_block: Called with a block's number and its arguments, before its call.

    Attributes:
        batch_sizes: Samples in each training call of a model; None where its arguments do not tell.
        models: Their classes.
        autocast: Format that autocast used in one; None without autocast.
    """

    def __init__(
        self,
        torch: Any,
        on_model: Callable[[Any], None],
        on_block: Callable[[int, List[Any]], None],
    ) -> None:
        self._torch = torch
        self._on_model, self._on_block = on_model, on_block
        self._patches: List[Patch] = []
        self._scores: Optional[Tuple[int, int]] = None
        self._inside: List[Any] = []
        self._blocks: List[int] = []
        self._numbers: Dict[int, int] = {}
        self._known: Dict[int, Any] = {}
        self.batch_sizes: List[Optional[int]] = []
        self.models: Dict[str, None] = {}
        self.autocast: Optional[str] = None

    def start(self) -> None:
        """Begin to follow."""
        self._inside, self._blocks, self.batch_sizes = [], [], []
        attention = replace(
            self._torch.nn.functional, "scaled_dot_product_attention", self._observing_attention
        )
        self._patches = [replace(self._torch.nn.Module, "__call__", self._observing), attention]

    def stop(self) -> None:
        """Follow no more."""
        for patch in self._patches:
            patch.off()
        self._patches = []

    def is_scores(self, tensor: Any) -> bool:
        """Whether a tensor is as large as the scores of torch's attention, on a processor."""
        return tuple(tensor.shape[-2:]) == self._scores and not tensor.is_cuda

    def _observing_attention(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def attend(query: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
            sides = (query.shape[-2], key.shape[-2])
            # Keys as wide as they are many look like scores: then none are told.
            self._scores = None if key.shape[-1] in sides else sides
            try:
                return original(query, key, *args, **kwargs)
            finally:
                self._scores = None

        return attend

    def place(self) -> Tuple[Optional[int], str]:
        """Say which block we are in, and the class of the innermost module."""
        block = self._blocks[-1] if self._blocks else None
        return block, type(self._inside[-1]).__name__ if self._inside else ""

    def _observing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._inside:
                self._enter_model(module, args, kwargs)
            block = None if self._blocks else self._numbers.get(id(module))
            if block is not None:
                self._on_block(block, list(_tensors((args, kwargs), 0)))
                self._blocks.append(block)
            self._inside.append(module)
            try:
                return original(module, *args, **kwargs)
            finally:
                self._inside.pop()
                if block is not None:
                    self._blocks.pop()

        return call

    def _enter_model(self, module: Any, args: Any, kwargs: Any) -> None:
        try:
            if not self._torch.is_grad_enabled():
                return
            if id(module) not in self._known:
                self._known[id(module)] = module  # held, so that its identity stays its own
                self._number(module)
            self._on_model(module)
            if not any(weight.requires_grad for weight in module.parameters()):
                return
            self.models.setdefault(type(module).__name__)
            first = puts_time_first(module)
            self.batch_sizes.append(batch_size(args, kwargs, may_be_sequences=first))
            self.autocast = self._autocast() or self.autocast
        except Exception:  # noqa: BLE001, S110 - an odd module is the script's right
            pass

    def _number(self, model: Any) -> None:
        """Number the blocks of a model, the outermost alone."""
        within = set()
        for module in model.modules():
            if id(module) in within:
                continue
            for block in _repeated(self._torch, module):
                if id(block) not in within:
                    self._numbers.setdefault(id(block), len(self._numbers))
                    within.update(map(id, block.modules()))

    def _autocast(self) -> Optional[str]:
        for is_enabled, dtype in autocasts(self._torch):
            if is_enabled():
                return str(dtype()).replace("torch.", "")
        return None


def _repeated(torch: Any, module: Any) -> List[Any]:
    """Give the children of a list or sequence that come at least twice and hold others."""
    if not isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)):
        return []
    by_kind: Dict[Any, List[Any]] = {}
    for child in module.children():
        if next(child.children(), None) is not None:
            by_kind.setdefault(type(child), []).append(child)
    return [child for alike in by_kind.values() if len(alike) > 1 for child in alike]


def _tensors(value: Any, depth: int) -> Iterator[Any]:
    if isinstance(value, (tuple, list, dict)):
        if depth < _DEEPEST:
            for item in value.values() if isinstance(value, dict) else value:
                for found in _tensors(item, depth + 1):
                    yield found
    elif hasattr(value, "untyped_storage"):
        yield value
