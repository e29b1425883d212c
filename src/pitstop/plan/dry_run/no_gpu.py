"""What torch lacks without a GPU to fake one, put there for a process of its own.

It needs a guard of devices that does nothing, the answer that CUDA is the accelerator, and a
backward pass that asks no driver. A build without CUDA has none of them, a build with CUDA but
without a driver lacks the last (torch 2.13 refuses the number of a device that is not there).
All are made of what the build has: tables of C++ methods are copied and single entries replaced.
No file is changed, nothing is compiled.
"""
# pyright: reportPrivateUsage=false

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from pitstop.errors import PitstopError

_GUARDS: Final = "_ZN3c104impl26device_guard_impl_registryE"
_GUARD_HEADER: Final = "include/c10/core/impl/DeviceGuardImplInterface.h"
_HOOKS: Final = "_ZN2at6detail12getCUDAHooksEv"
_CUDA, _META, _DEVICE_TYPES = 1, 14, 22
_ANSWERED: Final = (
    "type",
    "exchangeDevice",
    "getDevice",
    "getStream",
    "getDefaultStream",
    "exchangeStream",
)
METHODS: Final = 64
"""At least as many as either table has (48 and 33 in torch 2.13): one that is called and was not
copied ends the process. What lies behind them is copied and never called."""

_kept: list[Any] = []


def pretend_cuda() -> None:
    """Make this process able to fake a GPU, whatever its torch was built for.

    Raises:
        PitstopError: Where that is not possible.
    """
    if torch.version.cuda is not None and torch.cuda.device_count() > 0:
        return  # asked of the driver, without a context on the device
    libraries = Path(torch.__file__).parent / "lib"
    if not (libraries / "libc10.so").exists():
        raise PitstopError(
            f"planning needs Linux, or a GPU that torch sees; torch {torch.__version__} here "
            "has neither"
        )
    _set_guard(ctypes.CDLL(str(libraries / "libc10.so")))
    _set_accelerator(ctypes.CDLL(str(libraries / "libtorch_cpu.so")))


def _set_guard(library: ctypes.CDLL) -> None:
    """Guard CUDA devices as meta tensors are guarded: by doing nothing, events included."""
    guards = (ctypes.c_void_p * _DEVICE_TYPES).in_dll(library, _GUARDS)
    methods = _methods_of(guards[_META])
    place = {name: number for number, name in enumerate(_order_of_methods())}
    methods[place["record"]] = methods[place["block"]] = methods[place["setDevice"]]
    # A type, a device and a stream all begin with the byte of the type; the index 0 follows. What
    # else a stream holds does not matter where nothing waits for events.
    for name in _ANSWERED:
        methods[place[name]] = _answering_one()
    guard = ctypes.pointer(methods)
    _kept.append(guard)
    guards[_CUDA] = ctypes.addressof(guard)


def _order_of_methods() -> list[str]:
    """Read the order of a guard's methods off the header that comes with torch."""
    text = (Path(torch.__file__).parent / _GUARD_HEADER).read_text(encoding="utf-8")
    return re.findall(r"^  virtual [\w\s*]+?(\w+)\(", text, flags=re.MULTILINE)


def _set_accelerator(library: ctypes.CDLL) -> None:
    """Have torch say that CUDA is there, and that none of its devices is in use."""
    get_hooks = getattr(library, _HOOKS)
    get_hooks.restype = ctypes.c_void_p
    table = ctypes.cast(get_hooks(), ctypes.POINTER(ctypes.c_void_p))
    methods = _methods_of(ctypes.cast(table, ctypes.c_void_p).value)
    table[0] = ctypes.addressof(methods)
    _replace_one(methods, _answering_one(), _is_accelerator)
    _replace_one(methods, _answering_one(), _goes_backward)


def _replace_one(methods: Any, method: int | None, works: Callable[[], bool]) -> None:
    """Replace the entry that makes something work: it is found by trying each in turn."""
    if works():
        return
    for place in range(METHODS):
        before, methods[place] = methods[place], method
        if works():
            return
        methods[place] = before
    raise PitstopError(f"torch {torch.__version__} without a GPU cannot be made to plan for one")


def _is_accelerator() -> bool:
    found = torch._C._accelerator_getAccelerator()
    return getattr(found, "type", None) == "cuda"  # None where there is none, whatever stubs say


def _goes_backward() -> bool:
    with FakeTensorMode():
        leaf = torch.empty(1, device="cuda", requires_grad=True)
        try:
            (leaf * 2).sum().backward()
        except RuntimeError:
            return False
    return True


def _methods_of(address: Any) -> Any:
    """Copy the table of methods of a C++ object."""
    table = ctypes.cast(address, ctypes.POINTER(ctypes.POINTER(ctypes.c_void_p)))
    methods = (ctypes.c_void_p * METHODS)(*table[0][:METHODS])
    _kept.append(methods)
    return methods


def _answering_one() -> int | None:
    """Give a method that says 1: true, or a device of CUDA.

    It must not be Python. C++ asks guards on the way out of an error, and what Python answers
    while an error is set takes that error away: `torch.utils.checkpoint` ends what it runs again
    by such an error.
    """
    function = ctypes.pythonapi.Py_IsInitialized
    assert function() == _CUDA
    return ctypes.cast(function, ctypes.c_void_p).value
