"""Records the memory of a script's first steps, then ends the script.

step   0-1    the optimizers make their state, and are met
       2-3    recorded: what is saved for backward, and by which module
       then   written down; the script ends, or runs on as if nobody had looked

Hooks are on in the recorded steps alone. A script that updates its weights without an optimizer of
torch's is told by its backward passes.
"""

import contextlib
import functools
import json
import os
from typing import Any, Callable, Dict, Iterable, List, Optional

from pitstop_probe.hooks.patches import Patch, Undo, replace
from pitstop_probe.hooks.torch_hooks import part_of
from pitstop_probe.inventory import trained_parameters
from pitstop_probe.measurement import ENDED, MEASURED, Settings, end_script, mark
from pitstop_probe.stderr import say
from pitstop_probe.step_memory.module_calls import ModuleCalls
from pitstop_probe.step_memory.saved_tensors import GRADIENT, INPUT, SavedTensors
from pitstop_probe.steps.step_tracker import StepEnds
from pitstop_probe.writer import SCHEMA, describe_process

PREFIX = "step-memory-"
_FIRST, _STEPS = 2, 2
# Backward passes without a step of an optimizer, after which none is to come.
_PATIENCE = 40


class StepMemory:
    """Everything that looks at the memory of one training process."""

    def __init__(self, torch: Any, settings: Settings) -> None:
        self._torch = torch
        self._settings = settings
        self._pid = os.getpid()
        self._ends = StepEnds()
        self._optimizers: Dict[int, Any] = {}
        self._models: Dict[int, Any] = {}
        self._loader_batch: Optional[int] = None
        self._seen_steps = self._backward_passes = 0
        self._held: Optional[int] = None
        self._handles: List[Any] = []
        self._steps: List[Dict[str, Any]] = []
        self._is_on = self._is_closed = False
        self._problem: Optional[str] = None
        self._calls = ModuleCalls(torch, self._meet_model, self._enter_block)
        self._saved = SavedTensors(torch, self._calls.place, self._calls.is_scores)
        self._is_stepping = False
        self._patches = [
            Patch(self._put_after_steps),
            replace(torch.autograd, "backward", self._observed_backward),
            replace(torch.utils.data.DataLoader, "__iter__", self._observed_loader),
        ]

    def close(self) -> None:
        """Write what was recorded and take everything off; a forked process only goes."""
        if self._is_closed:
            return
        self._is_closed = True
        self._leave_step(is_whole=False)
        for patch in self._patches:
            patch.off()
        if os.getpid() == self._pid and (self._optimizers or self._backward_passes):
            try:
                self._write()
            except Exception as error:  # noqa: BLE001 - a full disk, an odd tensor
                say("what the step holds could not be written: {!r}".format(error))

    def _put_after_steps(self) -> Undo:
        hooks = part_of(self._torch, "optim.optimizer")
        handle = hooks.register_optimizer_step_post_hook(self._after_step)

        def undo() -> None:
            if self._is_stepping:
                # torch goes through its hooks right now: none may go, but ours may do nothing.
                hooks._global_optimizer_post_hooks[handle.id] = _ignore
            else:
                handle.remove()

        return undo

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        if self._is_closed or os.getpid() != self._pid:
            return
        self._is_stepping = True
        try:
            self._stepped(optimizer)
        except Exception as error:  # noqa: BLE001 - an odd optimizer or tensor: the script goes on
            self._problem = "recording failed: {!r}".format(error)
            self.close()
        finally:
            self._is_stepping = False

    def _stepped(self, optimizer: Any) -> None:
        """An optimizer has stepped; most often that ends a step of the training."""
        self._optimizers[id(optimizer)] = optimizer
        if not self._ends.closes(id(optimizer)) or self._is_capturing():
            return
        self._seen_steps += 1
        self._leave_step(is_whole=True)
        if self._seen_steps < _FIRST:
            return
        if len(self._steps) < _STEPS and self._saved.is_possible:
            self._enter_step()
            return
        if not self._steps:
            self._problem = "the script has saved_tensors_hooks of its own around all its steps"
        self._finish()

    def _finish(self) -> None:
        """Write everything down; end the script where it is the one that was meant."""
        self.close()
        folder, doctor = self._settings.folder, self._settings.doctor
        mark(folder, MEASURED)
        is_rank = describe_process()["world_size"] > 1
        if doctor is None or doctor.ends_this(is_rank=is_rank):
            mark(folder, ENDED)
            end_script(self._torch)
        say("recorded; the rest of the command runs on")

    def _enter_step(self) -> None:
        self._is_on, self._held = True, None
        trained = trained_parameters(self._optimizers.values())
        self._saved.keep_apart(trained)
        self._saved.start()
        self._calls.start()
        for weight in trained:
            hook = getattr(weight, "register_post_accumulate_grad_hook", None)
            if hook is not None and weight.is_leaf and weight.requires_grad:
                self._handles.append(hook(self._note_gradient))

    def _leave_step(self, *, is_whole: bool) -> None:
        if not self._is_on:
            return
        self._is_on = False
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._calls.stop()
        self._saved.stop()
        if is_whole:
            self._steps.append(
                {
                    "batch_sizes": self._calls.batch_sizes,
                    "pieces": self._saved.pieces,
                    "events": list(self._saved.events),
                    "gradients_held_bytes": self._held or 0,
                }
            )

    def _note_gradient(self, weight: Any) -> None:
        with contextlib.suppress(Exception):
            number = None if weight.grad is None else self._saved.note(weight.grad, GRADIENT)
            if number is not None:
                self._saved.events.append(number + 1)

    def _meet_model(self, model: Any) -> None:
        self._models[id(model)] = model
        self._saved.keep_apart(model.parameters())
        self._saved.keep_apart(model.buffers())

    def _enter_block(self, block: int, tensors: List[Any]) -> None:
        """Note what a block is given: with recomputation that is what is kept of it."""
        with contextlib.suppress(Exception):
            for tensor in tensors:
                self._saved.note(tensor, INPUT, block)

    def _is_capturing(self) -> bool:
        cuda = self._torch.cuda
        return cuda.is_initialized() and cuda.is_current_stream_capturing()

    def _observed_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if not self._is_closed and os.getpid() == self._pid:
                self._backward_passes += 1
                if self._is_on and self._held is None:
                    with contextlib.suppress(Exception):
                        self._held = self._gradients_held()
                elif not self._optimizers and self._backward_passes > _PATIENCE:
                    self._problem = "no optimizer of torch's updates the weights"
                    self._finish()
            return original(*args, **kwargs)

        return backward

    def _gradients_held(self) -> int:
        trained = trained_parameters(self._optimizers.values())
        return _num_bytes(weight.grad for weight in trained if weight.grad is not None)

    def _observed_loader(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def iterate(loader: Any) -> Any:
            if not self._seen_steps and not self._is_closed:
                size = getattr(loader, "batch_size", None)
                if size is None:
                    size = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
                self._loader_batch = size if isinstance(size, int) else None
            return original(loader)

        return iterate

    def _write(self) -> None:
        about = describe_process()
        trained = trained_parameters(self._optimizers.values())
        values = {
            "kind": "ScriptMemory",
            "schema": SCHEMA,
            "rank": about["rank"],
            "world_size": about["world_size"],
            "torch": about["torch"],
            "device": str(trained[0].device) if trained else "cpu",
            "models": list(self._calls.models),
            "autocast": self._calls.autocast,
            "loader_batch": self._loader_batch,
            "trained": _shapes(trained),
            "frozen": _shapes(self._frozen(trained)),
            "product_weights": self._product_weights(),
            "buffers_bytes": _num_bytes(
                buffer for model in self._models.values() for buffer in model.buffers()
            ),
            "optimizers": [type(one).__name__ for one in self._optimizers.values()],
            "fused_update": all(
                group.get("fused")
                for one in self._optimizers.values()
                for group in one.param_groups
            ),
            "optimizer_bytes": _num_bytes(_state(self._optimizers.values())),
            "device_peak_bytes": self._device_peak(),
            "steps": self._steps,
            "seen_steps": self._seen_steps,
            "backward_passes": self._backward_passes,
            "problem": self._problem,
        }
        path = os.path.join(self._settings.folder, "{}{}.json".format(PREFIX, os.getpid()))
        with open(path + ".part", "w", encoding="utf-8") as file:
            json.dump(values, file)
        os.replace(path + ".part", path)

    def _frozen(self, trained: List[Any]) -> List[Any]:
        known = {id(weight) for weight in trained}
        weights = [weight for model in self._models.values() for weight in model.parameters()]
        return list({id(weight): weight for weight in weights if id(weight) not in known}.values())

    def _product_weights(self) -> int:
        """Count the numbers in weights that autocast copies: those of products, not of tables."""
        table = self._torch.nn.Embedding
        found = {}
        for model in self._models.values():
            for module in model.modules():
                if not isinstance(module, table):
                    for weight in module.parameters(recurse=False):
                        if weight.ndim > 1:
                            found[id(weight)] = weight.numel()
        return sum(found.values())

    def _device_peak(self) -> Optional[int]:
        """Most that tensors held on the GPU so far; None where there is none."""
        cuda = self._torch.cuda
        return int(cuda.max_memory_allocated()) if cuda.is_initialized() else None


def _ignore(*_: Any) -> None:
    pass


def _state(optimizers: Iterable[Any]) -> List[Any]:
    return [
        value
        for optimizer in optimizers
        for values in list(optimizer.state.values())
        if isinstance(values, dict)
        for value in values.values()
        if hasattr(value, "untyped_storage")
    ]


def _num_bytes(tensors: Iterable[Any]) -> int:
    """Add up the memory behind tensors, each piece once."""
    found = {}
    for tensor in tensors:
        try:
            storage = tensor.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        except Exception:  # noqa: BLE001, S112 - sparse, or somebody's own kind of tensor
            continue
    return sum(found.values())


def _shapes(weights: Iterable[Any]) -> List[Dict[str, Any]]:
    """List shapes and formats, each with how often it comes."""
    counts: Dict[Any, int] = {}
    for weight in weights:
        key = (tuple(weight.shape), str(weight.dtype).replace("torch.", ""))
        counts[key] = counts.get(key, 0) + 1
    return [
        {"shape": list(shape), "dtype": dtype, "count": count}
        for (shape, dtype), count in counts.items()
    ]
