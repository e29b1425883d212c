"""Compile a block's kernels for GPUs that are not here, and print the shared memory they take.

Run by test_block.py as a script: the interpreter takes more than a device does.
"""

import sys
from collections.abc import Iterator
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from pitstop.kernels import block_triton as kernels
from pitstop.kernels.block_triton import FLOAT_INPUTS, PLANS, Launch
from pitstop.kernels.fallback import product_precision

HALF = {
    "weight_ptr",
    "out_ptr",
    "copy_ptr",
    "grad_ptr",
    "operand_ptr",
    "encoded_ptr",
    "first_ptr",
    "second_ptr",
    "last_ptr",
    "branch_ptr",
    "grad_hidden_ptr",
    "gated_ptr",
}


TYPES = {torch.bfloat16: "*bf16", torch.float32: "*fp32"}


def compiled(name: str, constants: dict[str, Any], kind: str, launch: Launch, arch: int) -> int:
    """Compile one kernel and give the bytes of shared memory that a program has."""
    kernel: Any = getattr(kernels, name)
    signature = {}
    for argument in kernel.arg_names:
        if argument in constants:
            signature[argument] = "constexpr"
        elif argument.endswith("_ptr"):
            signature[argument] = kind if argument in HALF else "*fp32"
        else:
            signature[argument] = "fp32" if argument == "eps" else "i32"
    # As at a call: what torch allocates begins at a multiple of 16 bytes.
    pointers = [place for place, kind in enumerate(signature.values()) if kind.startswith("*")]
    aligned = {(place,): [["tt.divisibility", 16]] for place in pointers}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
    done: Any = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    return done.metadata.shared


WHAT = ("NORMED", "ENCODED", "HAS_BIAS", "SCALED", "RESIDUAL", "TRANSPOSED", "COPIED", "SUMMED")


def operations(channels: int, dtype: torch.dtype) -> dict[str, tuple[str, Launch, dict[str, Any]]]:
    """Kernels as the published network runs them, at one width."""
    plan = PLANS[product_precision(dtype)]
    plain = dict.fromkeys(WHAT, False)
    sides = {"WIDTH": channels, "BLOCK_K": 128}
    precise = {"PRECISION": product_precision(dtype), **sides}
    hidden = {"HIDDEN": 2 * channels, "SCALED": True, **precise}
    norm = {"TWO": True, "RESIDUAL": True, "OPERANDS": 2, "ENCODED": True, "PAD": kernels.PAD}

    def projection(columns: int, **what: bool) -> dict[str, Any]:
        chosen = dict.fromkeys(what, True)
        wide = {"COLUMNS": columns, "BLOCK_N": plan.project.columns}
        return {**plain, **precise, **wide, **chosen}

    normed = projection(3 * channels, NORMED=True, ENCODED=True, HAS_BIAS=True)
    added = projection(channels, RESIDUAL=True, SCALED=True, HAS_BIAS=True)
    both = {"WIDTH": 2 * channels, "BLOCK_K": 256}
    added["BLOCK_N"] = plan.project_add.columns
    if dtype == torch.float32:
        added["BLOCK_K"] = both["BLOCK_K"] = FLOAT_INPUTS
    back = projection(2 * channels, TRANSPOSED=True, SCALED=True, COPIED=True, SUMMED=True)
    forward, backward = plan.feed_forward, plan.feed_forward_hidden
    unseen = {"BLOCK_H": backward.columns, "PAD": kernels.PAD, "BRANCH": True}
    unseen["TURNED"] = dtype == torch.float32
    return {
        "norm_project": ("_project", plan.project, normed),
        "project_add": ("_project", plan.project_add, added),
        "project_add_two": ("_project", plan.project_add, {**added, **both}),
        "project_add_branch": ("_project", plan.project, back),
        "norm_backward": ("_norm_backward", kernels.NORM_BACKWARD, {**sides, **norm}),
        "feed_forward": ("_feed_forward", forward, {**hidden, "BLOCK_H": forward.columns}),
        "feed_forward_hidden": ("_feed_forward_hidden", backward, {**hidden, **unseen}),
    }


def settings() -> Iterator[tuple[torch.dtype, int, tuple[int, ...]]]:
    """Types of products, widths, and devices to compile for."""
    for dtype, setting in (
        (torch.bfloat16, "ieee"),
        (torch.float32, "tf32"),
        (torch.float32, "ieee"),
    ):
        torch.backends.cuda.matmul.fp32_precision = setting
        yield dtype, 96, (90, 86, 89, 120)
        yield dtype, 120, (90,)


def main() -> None:
    """Print a line for each kernel, its shared memory last."""
    for dtype, channels, architectures in settings():
        for operation, (name, launch, constants) in operations(channels, dtype).items():
            sizes = {**constants, "BLOCK_T": launch.tokens}
            how = f"{dtype} {product_precision(dtype)}"
            for arch in architectures:
                shared = compiled(name, sizes, TYPES[dtype], launch, arch)
                text = f"{operation} {how} {channels} channels sm_{arch} shared {shared}\n"
                sys.stdout.write(text)


if __name__ == "__main__":
    main()
