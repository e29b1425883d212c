"""Compile the kernels of alignment for GPUs that are not here: the interpreter takes more.

Run by test_alignment_kernels.py as a script, with the capability of the device, such as 90.
"""

import re
import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from pitstop.kernels import deform_conv_triton, flow_warp_triton

NUMBERS = {"sources_ptr", "slots_ptr", "lacks_ptr", "current_ptr", "neighbours_ptr"}
WIDE = {"flow_ptr", "grad_flow_ptr", "places_bias_ptr", "bias_ptr", "totals_ptr", "scale_ptr"}
GUIDED = (1, 48, 16, 1, 48, 32)
PLAIN = (18, 2, 1, 9, 1, 0)
STEPS = ("PLACE_GROUP", "PLACE_TAP", "PLACE_AXIS", "MASK_GROUP", "MASK_TAP", "MASK_FIRST")
ALIGNED = ("_n", "_p")


def compiled(name: str, constants: dict[str, Any], dtype: str, **options: int) -> None:
    module = deform_conv_triton if hasattr(deform_conv_triton, name) else flow_warp_triton
    kernel: Any = getattr(module, name)
    signature = {}
    for argument in kernel.arg_names:
        if argument in constants:
            signature[argument] = "constexpr"
        elif argument in NUMBERS:
            signature[argument] = "*i32"
        elif argument == "totals_ptr" and constants.get("EXACT"):
            signature[argument] = "*i64"
        elif argument.endswith("_ptr"):
            # A convolution whose sums are not exact gets a gradient in the scale's place.
            stands_in = argument == "scale_ptr" and module is deform_conv_triton
            stands_in &= not constants.get("EXACT")
            wide = (argument in WIDE or "parts" in argument) and not stands_in
            signature[argument] = "*fp32" if wide else f"*{dtype}"
        else:
            signature[argument] = "fp32" if argument == "max_residue" else "i32"
    # As at a call: what torch allocates begins at a multiple of 16 bytes.
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, (argument, kind) in enumerate(signature.items())
        if kind.startswith("*") or argument.endswith(ALIGNED)
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    target = GPUTarget("cuda", int(sys.argv[1]), 32)
    done: Any = triton.compile(source, target=target, options=options)
    products = len(re.findall(r"mma\.sync|wgmma\.mma_async", done.asm["ptx"]))
    shared = done.metadata.shared
    sys.stdout.write(f"{name} {dtype}: compiled, {products} products, {shared} bytes shared\n")


def convolutions(dtype: str, *, guided: bool, exact: bool = False, precision: str = "ieee") -> None:
    constants: dict[str, Any] = dict(zip(STEPS, GUIDED if guided else PLAIN, strict=True))
    constants |= {
        "GROUPS": 16,
        "CHANNELS": 6,
        "PADDED": 8,
        "OUT": 96,
        "HEAD": 96 if guided else 0,
        "BLOCK_OUT": 128,
        "TAPS": 9,
        "TAPS_X": 3,
        "GUIDED": guided,
        "PRECISION": precision,
    }
    if guided:
        constants |= {"places_c": 1, "mask_c": 1}
    else:
        constants |= {"places_p": 1, "mask_p": 1}
    launches = deform_conv_triton.FORWARD, deform_conv_triton.BACKWARD
    if dtype == "fp32":
        launches = deform_conv_triton.FLOAT_FORWARD, deform_conv_triton.FLOAT_BACKWARD
    for backward, launch in enumerate(launches):
        cut = {"BLOCK_PIXELS": launch.block_pixels, "BLOCK_GROUPS": launch.block_groups}
        kernel = "_convolve"
        if backward:
            cut["EXACT"] = exact
            kernel = "_convolve_backward"
        options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
        compiled(kernel, constants | cut, dtype, **options)


def warps(dtype: str) -> None:
    constants = {"CHANNELS": 96, "BLOCK_CHANNELS": 128, "image_c": 1, "out_c": 1, "flow_p": 1}
    parts = {"WARPED": 0, "CURRENT": 96, "FLOW": 192, "BORDER": False}
    last = {"NEEDS_IMAGES": True, "EXACT": False}
    for kernel, launch, more in (
        ("_warp", flow_warp_triton.FORWARD, parts | {"NUM_OUT": 200}),
        ("_warp_backward", flow_warp_triton.BACKWARD, parts | last),
    ):
        cut = {"BLOCK_PIXELS": launch.block_values // 128}
        compiled(kernel, constants | more | cut, dtype, num_warps=launch.num_warps)
    picture = {"CHANNELS": 3, "BLOCK_CHANNELS": 4, "BLOCK_PIXELS": 1024, "EXACT": False}
    plain = {"image_p": 1, "out_p": 1, "flow_p": 1}
    kernel = "_nearest4"
    for backward in (False, True):
        compiled(kernel, picture | plain | {"BACKWARD": backward}, dtype, num_warps=4)


def moves(dtype: str) -> None:
    constants = {"GROUPS": 16, "CHANNELS": 6, "PADDED": 8, "BLOCK_GROUPS": 16, "image_c": 1}
    constants["BLOCK_PIXELS"] = deform_conv_triton.PACK_PIXELS
    compiled("_pack_images", constants | {"COPY": True}, dtype)
    last = {"COPIED": True, "EXACT": False}
    compiled("_unpack", constants | last, dtype)


def main() -> None:
    convolutions("bf16", guided=True)
    convolutions("fp32", guided=True, exact=True, precision="tf32x3")
    convolutions("fp32", guided=True, precision="tf32")
    convolutions("fp16", guided=False)
    for dtype in ("bf16", "fp32"):
        warps(dtype)
    moves("bf16")


if __name__ == "__main__":
    main()
