"""A stopwatch that knows nothing of pitstop: where the steps of a script spend their time.

    python stopwatch.py OUT.json '{"data": ["get_batch"]}' train.py --its --arguments

It runs the script with clocks around the loader's ``__next__``, the outermost call of a module,
``backward``, ``autograd.grad`` and every optimizer's step, and around functions that it is given
by name. Only the outermost clock runs, but for what the closure of an optimizer calls, which is
taken out of the optimizer's time: nothing counts twice. A step lasts from the end of one
optimizer step to the end of the next. Left out are the first ten, and those that held something
else: a new pass over a loader, a forward pass without gradients and without an optimizer step to
follow it at once (an evaluation), a checkpoint.
"""

import ast
import importlib
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch.utils.data import dataloader

WARM_UP = 10


class Stopwatch:
    """Times of the parts of the present step, and of all finished ones."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.around: list[str] = []
        self.parts: dict[str, float] = {}
        self.spoilt = False
        self.start_s = time.perf_counter()
        self.steps: list[tuple[float, dict[str, float]]] = []
        self.seen = 0

    def timed(self, part: str, call: Callable[..., Any], *, spoils: bool = False) -> Any:
        """Wrap a callable."""

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            # Inside an optimizer lies what its closure calls; elsewhere the outermost counts.
            outer = self.around[-1] if self.around else None
            if outer not in (None, "optimizer", "closure") or threading.get_ident() != self.thread:
                return call(*args, **kwargs)
            self.around.append(part)
            self.spoilt |= spoils
            start_s = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.around.pop()
                took_s = time.perf_counter() - start_s
                self.parts[part] = self.parts.get(part, 0.0) + took_s
                if outer is not None:
                    self.parts[outer] = self.parts.get(outer, 0.0) - took_s

        return wrapper

    def end_step(self) -> None:
        """An optimizer has stepped."""
        now_s = time.perf_counter()
        self.seen += 1
        if self.seen > WARM_UP and not self.spoilt:
            self.steps.append((now_s - self.start_s, dict(self.parts)))
        self.parts.clear()
        self.spoilt = False
        self.start_s = now_s

    def result(self) -> dict[str, Any]:
        """Shares of the steps that were clean."""
        wall_s = sum(wall for wall, _ in self.steps)
        names = {name for _, parts in self.steps for name in parts}
        shares = {
            name: sum(parts.get(name, 0.0) for _, parts in self.steps) / wall_s for name in names
        }
        return {"steps": self.seen, "clean": len(self.steps), "wall_s": wall_s, "shares": shares}


def install(watch: Stopwatch) -> None:
    """Put clocks around what every training uses."""
    for name in ("_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"):
        kind: Any = getattr(dataloader, name)
        # Workers are started here, so an epoch's first batch is no part of a step.
        kind.__init__ = watch.timed("epoch", kind.__init__, spoils=True)
        kind.__next__ = watch.timed("data", kind.__next__)
    torch.nn.Module.__call__ = _forward(watch, torch.nn.Module.__call__)
    torch.autograd.backward = watch.timed("backward", torch.autograd.backward)
    torch.autograd.grad = watch.timed("backward", torch.autograd.grad)
    torch.save = watch.timed("save", torch.save, spoils=True)
    _optimizers(watch)


def _forward(watch: Stopwatch, call: Callable[..., Any]) -> Callable[..., Any]:
    timed = watch.timed("forward", call)

    def module_call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not watch.around and not self.training and not torch.is_grad_enabled():
            watch.spoilt = True
        return timed(self, *args, **kwargs)

    return module_call


def _optimizers(watch: Stopwatch) -> None:
    original = torch.optim.Optimizer.profile_hook_step

    def profile_hook_step(step: Callable[..., Any]) -> Callable[..., Any]:
        hooked = original(step)
        timed = watch.timed("optimizer", hooked)

        def whole(*args: Any, **kwargs: Any) -> Any:
            outermost = not watch.around
            if len(args) > 1 and callable(args[1]):
                args = (args[0], watch.timed("closure", args[1]), *args[2:])
            elif callable(kwargs.get("closure")):
                kwargs["closure"] = watch.timed("closure", kwargs["closure"])
            result = timed(*args, **kwargs)
            if outermost:
                watch.end_step()
            return result

        whole.hooked = True  # pyright: ignore[reportFunctionMemberAccess]
        return whole

    torch.optim.Optimizer.profile_hook_step = staticmethod(profile_hook_step)  # pyright: ignore[reportAttributeAccessIssue]


def wrap_named(watch: Stopwatch, names: Mapping[str, list[str]]) -> dict[str, str]:
    """Wrap ``module:Class.method`` now; return the script's own functions with their parts."""
    own: dict[str, str] = {}
    for part, functions in names.items():
        for name in functions:
            module, _, path = name.rpartition(":")
            if not module:
                own[path] = part
                continue
            *owners, last = path.split(".")
            holder: Any = importlib.import_module(module)
            for owner in owners:
                holder = getattr(holder, owner)
            setattr(holder, last, watch.timed(part, getattr(holder, last)))
    return own


def compiled(path: Path, own: Mapping[str, str]) -> CodeType:
    """The script, its named functions decorated by the stopwatch."""
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name in own:
            call = ast.Call(
                ast.Name("__zoo_timed__", ast.Load()), [ast.Constant(own[node.name])], []
            )
            node.decorator_list.insert(0, ast.copy_location(ast.fix_missing_locations(call), node))
    return compile(ast.fix_missing_locations(tree), str(path), "exec")


def main() -> None:
    out, names, script, *args = sys.argv[1:]
    sys.path[0] = str(Path(script).resolve().parent)
    sys.argv = [script, *args]
    watch = Stopwatch()
    install(watch)
    own = wrap_named(watch, json.loads(names))
    main_module = type(sys)("__main__")
    main_module.__dict__.update(
        __file__=script,
        __zoo_timed__=lambda part: lambda function: watch.timed(part, function),
    )
    code = compiled(Path(script), own)
    sys.modules["__main__"] = main_module
    try:
        exec(code, main_module.__dict__)
    finally:
        Path(out).write_text(json.dumps(watch.result()), encoding="utf-8")


if __name__ == "__main__":
    main()
