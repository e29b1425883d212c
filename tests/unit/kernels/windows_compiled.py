"""Compile attention in windows for a GPU, without one: the interpreter takes more than a device.

Run by test_windows.py as a script.
"""

import re
import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from pitstop.kernels import windows_triton

TARGET = GPUTarget("cuda", 90, 32)
WIDE = {"bias_ptr", "mask_ptr", "parts_ptr"}
LAUNCHES = {"_attend": windows_triton.FORWARD, "_attend_backward": windows_triton.BACKWARD}


def compiled(name: str, constants: dict[str, Any], dtype: str) -> None:
    kernel: Any = getattr(windows_triton, name)
    signature = {}
    for argument in kernel.arg_names:
        if argument in constants:
            signature[argument] = "constexpr"
        elif argument.endswith("_ptr"):
            signature[argument] = "*fp32" if argument in WIDE else f"*{dtype}"
        else:
            signature[argument] = "fp32" if argument == "scale" else "i32"
    # As at a call: what torch allocates begins at a multiple of 16 bytes.
    pointers = [place for place, kind in enumerate(signature.values()) if kind.startswith("*")]
    aligned = {(place,): [["tt.divisibility", 16]] for place in pointers}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    launch = LAUNCHES[name]
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
    done: Any = triton.compile(source, target=TARGET, options=options)
    products = len(re.findall(r"mma\.sync|wgmma\.mma_async", done.asm["ptx"]))
    shared = done.metadata.shared
    sys.stdout.write(f"{name} {dtype}: compiled, {products} products, {shared} bytes shared\n")


def main() -> None:
    for dtype, heads, channels, tokens, has_mask in (
        ("bf16", 3, 32, 49, True),
        ("bf16", 24, 32, 49, False),
        ("fp16", 4, 24, 16, True),
        ("fp32", 2, 64, 64, True),
    ):
        constants = {
            "TOKENS": tokens,
            "HEADS": heads,
            "CHANNELS": channels,
            "BLOCK_TOKENS": 16 if tokens == 16 else 64,
            "BLOCK_CHANNELS": 64 if channels == 64 else 32,
            "HAS_MASK": has_mask,
        }
        for name in LAUNCHES:
            compiled(name, constants, dtype)


if __name__ == "__main__":
    main()
