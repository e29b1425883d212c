"""Compile the splat of columns for a GPU, without one: the interpreter takes more than a device.

Run by test_splat_columns.py as a script.
"""

import re
import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from pitstop.kernels import splat_columns_triton

TARGET = GPUTarget("cuda", 90, 32)
CELLS = {"TILE_COLUMNS": 4, "TILE_ROWS": 4}
SUMS = {**CELLS, "COLUMN": 16, "PAIR_BINS": 4, "BLOCK_PAIRS": 4}
GATHER = {"COLUMN": 16, "SHARE": 128, "BLOCK_BINS": 32}
INTEGERS = re.compile(r"(targets|codes|tops|points|tiles|starts|ends|first_pieces|last_pieces)_ptr")


def compiled(name: str, constants: dict[str, Any], dtype: str) -> None:
    kernel: Any = getattr(splat_columns_triton, name)
    signature = {}
    for argument in kernel.arg_names:
        if argument in constants:
            signature[argument] = "constexpr"
        elif INTEGERS.fullmatch(argument) or not argument.endswith("_ptr"):
            signature[argument] = "*i32" if argument.endswith("_ptr") else "i32"
        else:
            signature[argument] = "*fp32" if argument == "parts_ptr" else f"*{dtype}"
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    done: Any = triton.compile(source, target=TARGET, options={"num_warps": 4})
    products = len(re.findall(r"mma\.sync|wgmma\.mma_async", done.asm["ptx"]))
    sys.stdout.write(f"{name} {dtype}: compiled, {products} matrix products\n")


def main() -> None:
    for dtype, precision, channels in (("bf16", "ieee", 64), ("fp32", "tf32x3", 256)):
        numbers = {"HEAD": channels, "TAIL": 16, "HAS_TAIL": channels == 64, "PRECISION": precision}
        compiled("_sum_pairs", {**SUMS, **numbers, "IS_HALF": dtype != "fp32"}, dtype)
        compiled("_gather", {**GATHER, **numbers}, dtype)
        compiled("_add_parts", {**CELLS, "BLOCK_CHANNELS": 128}, dtype)
    numbers = {"HEAD": 16, "TAIL": 16, "HAS_TAIL": False, "PRECISION": "ieee"}
    compiled("_sum_pairs", {**SUMS, **numbers, "IS_HALF": True, "BLOCK_PAIRS": 1}, "fp16")
    compiled("_gather", {**GATHER, **numbers, "BLOCK_BINS": 16}, "fp16")
    wide = {**SUMS, **numbers, "TILE_ROWS": 8, "TILE_COLUMNS": 8, "PAIR_BINS": 8}
    compiled("_sum_pairs", {**wide, "HEAD": 128, "IS_HALF": True}, "bf16")


if __name__ == "__main__":
    main()
