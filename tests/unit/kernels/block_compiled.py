"""Compile a block's kernels for GPUs that are not here, and print the shared memory they take.

Run by test_block.py as a script: the interpreter takes more than a device does.
"""

import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from pitstop.kernels import block_triton as kernels
from pitstop.kernels.block_triton import PLAN, Launch

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


def compiled(name: str, constants: dict[str, Any], launch: Launch, arch: int) -> int:
    """Compile one kernel and give the bytes of shared memory that a program has."""
    kernel: Any = getattr(kernels, name)
    signature = {}
    for argument in kernel.arg_names:
        if argument in constants:
            signature[argument] = "constexpr"
        elif argument.endswith("_ptr"):
            signature[argument] = "*bf16" if argument in HALF else "*fp32"
        else:
            signature[argument] = "fp32" if argument == "eps" else "i32"
    # As at a call: what torch allocates begins at a multiple of 16 bytes.
    pointers = [place for place, kind in enumerate(signature.values()) if kind.startswith("*")]
    aligned = {(place,): [["tt.divisibility", 16]] for place in pointers}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
    done: Any = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    return done.metadata.shared


def operations(channels: int) -> dict[str, tuple[str, Launch, dict[str, Any]]]:
    """Kernels as the published network runs them, at one width."""
    plain = dict.fromkeys(
        ("NORMED", "ENCODED", "HAS_BIAS", "SCALED", "RESIDUAL", "TRANSPOSED", "COPIED"), False
    )
    sides = {"WIDTH": channels, "BLOCK_K": 128}
    hidden = {"HIDDEN": 2 * channels, "SCALED": True, **sides}
    norm = {"TWO": True, "RESIDUAL": True, "OPERANDS": 2, "ENCODED": True, "PAD": kernels.PAD}

    def projection(columns: int, **what: bool) -> dict[str, Any]:
        chosen = dict.fromkeys(what, True)
        wide = {"COLUMNS": columns, "BLOCK_N": PLAN.project.columns}
        return {**plain, **sides, **wide, **chosen}

    normed = projection(3 * channels, NORMED=True, ENCODED=True, HAS_BIAS=True)
    both = {"WIDTH": 2 * channels, "BLOCK_K": 256}
    added = projection(channels, RESIDUAL=True, SCALED=True, HAS_BIAS=True)
    back = projection(2 * channels, TRANSPOSED=True, SCALED=True, COPIED=True)
    forward, backward = PLAN.feed_forward, PLAN.feed_forward_hidden
    return {
        "norm_project": ("_project", PLAN.project, normed),
        "project_add": ("_project", PLAN.project, added),
        "project_add_two": ("_project", PLAN.project, {**added, **both}),
        "project_add_branch": ("_project", PLAN.project, back),
        "norm_backward": ("_norm_backward", PLAN.norm_backward, {**sides, **norm}),
        "feed_forward": ("_feed_forward", forward, {**hidden, "BLOCK_H": forward.columns}),
        "feed_forward_hidden": (
            "_feed_forward_hidden",
            backward,
            {**hidden, "BLOCK_H": backward.columns, "PAD": kernels.PAD},
        ),
    }


def main() -> None:
    """Print a line for each kernel, its shared memory last."""
    for channels, architectures in ((96, (90, 86, 89, 120)), (120, (90,))):
        for operation, (name, launch, constants) in operations(channels).items():
            sizes = {**constants, "BLOCK_T": launch.tokens}
            for arch in architectures:
                shared = compiled(name, sizes, launch, arch)
                text = f"{operation} {channels} channels sm_{arch} shared {shared}\n"
                sys.stdout.write(text)


if __name__ == "__main__":
    main()
