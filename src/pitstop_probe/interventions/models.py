"""Whole models changed in place: in bf16 where that is safe, channels last, compiled.

A model is what owns weights of an optimizer and is no part of another module. It is changed when
its optimizer is built; its weights stay the objects that the optimizer has.
"""

import contextlib
import functools
import gc
import re
import types
from typing import Any, Callable, Dict, List, Mapping

from pitstop_probe.hooks.patches import tracing_test
from pitstop_probe.interventions.sites import Sites


class ModelChanges:
    """Changes the models of every optimizer that is built.

    Args:
        torch: The script's torch.
        changes: Settings by name, those of models among others.
        sites: Takes what was built and changed.
    """

    def __init__(self, torch: Any, changes: Mapping[str, str], sites: Sites) -> None:
        self._torch = torch
        self._sites = sites
        self._is_traced = tracing_test(torch)
        self._wanted = {
            name: name + "=" + changes[name]
            for name in ("autocast", "channels_last", "compile")
            if name in changes
        }
        self._known: Dict[int, Any] = {}

    def built(self, optimizer: Any, place: str, frame: Any) -> None:
        """Change the models that an optimizer trains."""
        for model in models_of(self._torch, optimizer):
            if id(model) in self._known:
                continue
            self._known[id(model)] = model
            name = name_in(frame, model)
            self._sites.built("model", place, **self._described(model, name))
            self._change(model, place, name)

    def _described(self, model: Any, name: str) -> Dict[str, Any]:
        weights = list(model.parameters())
        convolution = self._torch.nn.modules.conv._ConvNd
        return {
            "name": name,
            "class": type(model).__name__,
            "device": weights[0].device.type,
            "convolves": any(isinstance(each, convolution) for each in model.modules()),
            "volumes": any(weight.dim() == 5 for weight in weights),
            "is_float32": all(weight.dtype == self._torch.float32 for weight in weights),
            "pads": self._pads(weights[0].device.type),
        }

    def _pads(self, device: str) -> bool:
        """Whether a compiler would pad strides there, of which gradients can become wrong."""
        return device == "cuda" and _knows_padding(self._torch)

    def _change(self, model: Any, place: str, name: str) -> None:
        wanted = self._wanted
        is_open = "forward" not in vars(model)  # somebody else may have put his own there
        if is_open and ("autocast" in wanted or "channels_last" in wanted):
            self._wrap(model, next(model.parameters()).device.type)
        if "channels_last" in wanted:
            model.to(memory_format=self._torch.channels_last)
        if "compile" in wanted and hasattr(model, "compile"):
            pads = self._pads(next(model.parameters()).device.type)
            # Nothing is said where nothing has to be: the model's own method may take no options.
            model.compile(**({"options": {"comprehensive_padding": False}} if pads else {}))
            self._sites.changed(wanted["compile"], place, name)

    def _wrap(self, model: Any, device: str) -> None:
        torch, sites, is_traced = self._torch, self._sites, self._is_traced
        plain = type(model).forward
        arrange = _channels_last(torch) if "channels_last" in self._wanted else _as_it_is
        is_cast = "autocast" in self._wanted
        restore = _in_float32(torch) if is_cast else _as_it_is
        cast = functools.partial(torch.autocast, device, dtype=torch.bfloat16)
        around = cast if is_cast else contextlib.nullcontext
        uncalled = [text for name, text in self._wanted.items() if name != "compile"]

        @functools.wraps(plain)
        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not is_traced() and uncalled:
                for name in uncalled:
                    sites.changed(name, sites.place(), type(self).__name__)
                uncalled.clear()
            args, kwargs = arrange(args), arrange(kwargs)
            with around():
                given = plain(self, *args, **kwargs)
            return restore(given)

        # A method, so that a copy of the model gets one of its own.
        model.forward = types.MethodType(forward, model)


def _knows_padding(torch: Any) -> bool:
    # From torch 2.4 on. Later versions read some padded tensors as if they were not padded
    # (pytorch/pytorch#194281): the loss stays right, gradients do not.
    return tuple(map(int, re.findall(r"\d+", torch.__version__)[:2])) >= (2, 4)


def models_of(torch: Any, optimizer: Any) -> List[Any]:
    """Find what owns an optimizer's weights and is no part of another module."""
    weights = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    kind = torch.nn.Module
    owners = [
        found
        for found in gc.get_objects()
        if issubclass(type(found), kind) and not _is_scripted(torch, found)
        if any(id(weight) in weights for weight in found.parameters())
    ]
    # A module that trains itself is not called as a model: what is in it is.
    outer = [each for each in owners if not hasattr(type(each), "training_step")]
    inner = {id(child) for each in outer for child in each.modules() if child is not each}
    return [each for each in outer if id(each) not in inner]


def _is_scripted(torch: Any, module: Any) -> bool:
    return isinstance(module, torch.jit.ScriptModule)


def name_in(frame: Any, model: Any) -> str:
    """Name a model as the code that built its optimizer does; its class where it has no name."""
    if frame is not None:
        for names in (frame.f_locals, frame.f_globals):
            found = [name for name, value in list(names.items()) if value is model]
            if found:
                return found[0]
        owner = frame.f_locals.get("self")
        held = vars(owner) if hasattr(owner, "__dict__") else {}
        held = {**held, **held.get("_modules", {})}
        found = [name for name, value in held.items() if value is model]
        if found:
            return "self." + found[0]
    return type(model).__name__


def _as_it_is(value: Any) -> Any:
    return value


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Change the tensors in what a model takes or gives, as deep as tuples, lists and dicts go."""
    if isinstance(value, (list, tuple)):
        mapped = [_mapped(change, each) for each in value]
        return type(value)(*mapped) if hasattr(value, "_fields") else type(value)(mapped)
    if type(value) is dict:
        return {name: _mapped(change, each) for name, each in value.items()}
    if isinstance(value, dict):  # what a library gives, which is more than a dict
        for name in list(value):
            value[name] = _mapped(change, value[name])
        return value
    return change(value)


def _in_float32(torch: Any) -> Callable[[Any], Any]:
    def change(value: Any) -> Any:
        is_short = isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16
        return value.float() if is_short else value

    return functools.partial(_mapped, change)


def _channels_last(torch: Any) -> Callable[[Any], Any]:
    def change(value: Any) -> Any:
        is_picture = isinstance(value, torch.Tensor) and value.dim() == 4
        return value.contiguous(memory_format=torch.channels_last) if is_picture else value

    return functools.partial(_mapped, change)
