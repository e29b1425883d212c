"""Compile attention in volumes for GPUs that are not here, and print the shared memory it takes.

Run by test_window_attention.py as a script: the interpreter takes more than a device does.
"""

import sys
from collections.abc import Iterator
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from pitstop.kernels import window_attention_triton as kernels
from pitstop.kernels.fallback import product_precision
from pitstop.kernels.window_attention_triton import Cut, Launch

ARCHITECTURES = (90, 86, 89, 120)
FLOATS = {"table_ptr", "lse_ptr", "delta_ptr", "parts_ptr", "sums_ptr", "tops_ptr", "grad_top_ptr"}
RESULTS = {"out_ptr", "grad_qkv_ptr"}
"""Are float32 where operands in 16 bits stand for float32."""
TYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}


def arguments(name: str) -> list[str]:
    """Of a kernel."""
    return getattr(kernels, name).arg_names


def compiled(name: str, constants: dict[str, Any], dtype: str, launch: Launch, arch: int) -> int:
    """Compile one kernel and give the bytes of shared memory that a program has."""
    kernel: Any = getattr(kernels, name)
    signature = {}
    for argument in kernel.arg_names:
        if argument in constants:
            signature[argument] = "constexpr"
        elif argument == "bias_ptr":
            signature[argument] = "*fp16" if constants["SHORT_BIAS"] else "*fp32"
        elif argument.endswith("_ptr"):
            wide = argument in FLOATS or (constants.get("STRETCHED") and argument in RESULTS)
            signature[argument] = "*fp32" if wide else f"*{dtype}"
        else:
            signature[argument] = "fp32" if argument == "scale" else "i32"
    # As at a call: what torch allocates begins at a multiple of 16 bytes.
    pointers = [place for place, kind in enumerate(signature.values()) if kind.startswith("*")]
    aligned = {(place,): [["tt.divisibility", 16]] for place in pointers}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    options: dict[str, Any] = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
    if launch.max_registers is not None:
        options["maxnreg"] = launch.max_registers
    done: Any = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    return done.metadata.shared


PUBLISHED = (
    ((2, 8, 8), 16, False),
    ((2, 8, 8), 16, True),
    ((6, 8, 8), 16, False),
    ((6, 8, 8), 20, False),
    ((1, 8, 8), 20, False),
)


def operations() -> Iterator[tuple[Cut, torch.dtype, int]]:
    """What the published network runs, and what others may: how, type, channels."""
    for size, channels, mutual in PUBLISHED:
        yield Cut(size, (0, 4, 4), True, 6, size, mutual), torch.bfloat16, channels
    # Float16 that stands for TF32: one window that a tile holds, one of the widest heads.
    for size, channels, mutual in (PUBLISHED[0], PUBLISHED[3]):
        yield Cut(size, (0, 4, 4), True, 6, size, mutual), torch.float16, channels
    # What takes most in float32: one window that a tile holds, one of the widest heads.
    for setting, sizes in (("tf32", (PUBLISHED[0], PUBLISHED[3])), ("ieee", PUBLISHED[3:4])):
        torch.backends.cuda.matmul.fp32_precision = setting
        for size, channels, mutual in sizes:
            yield Cut(size, (0, 4, 4), True, 6, size, mutual), torch.float32, channels
    yield Cut((2, 8, 8), (0, 4, 4), True, 2, (6, 8, 8)), torch.float16, 32


def main() -> None:
    """Print a line for each kernel, its shared memory last."""
    for cut, dtype, channels in operations():
        precision = product_precision(dtype)
        plan = kernels.plan_for(cut.tokens, channels, mutual=cut.mutual, precision=precision)
        # Stands for TF32.
        stretched = dtype == torch.float16 and cut.table_window == cut.size
        plan = kernels.halves_plan(plan, cut, channels) if stretched else plan
        qkv = torch.empty(1, 1, 1, 1, 3 * cut.num_heads * channels, dtype=dtype, device="meta")
        out = torch.empty(1, 1, 1, 1, cut.num_heads * channels, dtype=dtype, device="meta")
        jobs = {"_attend": plan.forward, "_grad_whole": plan.backward}
        if plan.backward.keys < cut.tokens:
            jobs = {"_attend": plan.forward, "_grad_tiles": plan.backward, "_grad_bias": plan.bias}
        for name, launch in jobs.items():
            table = None if cut.mutual else out
            constants = kernels.constants_of(qkv, table, out, cut, launch)
            constants["STRETCHED"] = stretched
            constants = {key: constants[key] for key in constants if key in arguments(name)}
            for arch in ARCHITECTURES:
                shared = compiled(name, constants, TYPES[dtype], launch, arch)
                text = f"{name} {dtype} {cut.tokens} tokens {channels} channels sm_{arch} "
                text += f"{constants['PRECISION']} shared {shared}"
                sys.stdout.write(text + "\n")
        if not cut.mutual:
            fold(cut)


def fold(cut: Cut) -> None:
    """The kernel behind those of the bias' gradient, whose operands are all float32."""
    constants = {
        "HEADS": cut.num_heads,
        "TOKENS": cut.tokens,
        "SIDES": cut.size,
        "TABLE": cut.table_window,
        "BLOCK_PLACES": triton.next_power_of_2(2 * cut.table_window[2] - 1),
        "BLOCK_KEYS": kernels.FOLD_KEYS,
        "AT_ONCE": kernels.FOLD_AT_ONCE,
    }
    for arch in ARCHITECTURES:
        shared = compiled(
            "_fold_bias", constants, "fp32", Launch(0, 0, 0, kernels.FOLD_WARPS, 1), arch
        )
        sys.stdout.write(f"_fold_bias {cut.tokens} tokens sm_{arch} shared {shared}\n")


if __name__ == "__main__":
    main()
