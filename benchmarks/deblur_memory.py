"""VRT, published size, within an amount of GPU memory: what fits, and how fast it trains then.

    python benchmarks/deblur_memory.py --output FILE.json [--limit-s 240]

bf16, fused kernels, clips of six frames of 256x256. Under each cap
(`torch.cuda.set_per_process_memory_fraction`) the step recomputes just so much that what forward
keeps fits, as `train.recompute: SIZE` does; without a cap batches grow until one does not fit.
Every row is a process of its own, and out of memory is a result. `--smoke` runs the smallest size
on a CPU.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from apart import in_a_process_of_its_own
from deblur_vrt import Variant, clips, loss_of, peak, step_of, timed_ms, trained_like
from pitstop.errors import ConfigError
from pitstop.train.model.recompute_budget import fit_recompute
from pitstop.workloads.deblur.model.vrt import VRT, VRT_GOPRO, VRT_SMALL
from progress import say, write

GB = 10**9
TURNS = 3
FOR_ACTIVATIONS = 0.8
"""Of a cap, for what forward keeps; the rest is for weights, gradients and kernels at work."""

ROWS: list[dict[str, Any]] = [
    *({"cap_gb": cap_gb, "batch": 1} for cap_gb in (48, 32, 24)),
    *({"cap_gb": cap_gb, "batch": 2} for cap_gb in (48, 32)),
    *({"cap_gb": None, "batch": batch} for batch in (1, 2, 3, 4)),
]


def measure(row: dict[str, Any], *, smoke: bool) -> dict[str, Any]:
    """Train a few steps within the row's memory."""
    device = torch.device("cpu" if smoke else "cuda")
    cap_gb = row["cap_gb"]
    if cap_gb is not None and not smoke:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(cap_gb * GB / total, 1.0))
    settings = {**(VRT_SMALL if smoke else VRT_GOPRO), "drop_path_rate": 0.0}
    model = VRT(kernels="auto", **settings)
    model.load_state_dict(trained_like(model))
    one = Variant(name="fused", precision="bf16", model=model.to(device).train())
    clip, sharp = (torch.cat([part] * row["batch"]) for part in clips(device, smoke=smoke))
    try:
        if cap_gb is not None:
            budget_bytes = int(cap_gb * GB * FOR_ACTIVATIONS)
            facts = fit_recompute(
                model, budget_bytes, lambda: loss_of(one, clip, sharp)[0], units=()
            )
            assert facts.kept_bytes is not None, "a budget was given"
            row |= {"recomputed": facts.places, "kept_gib": round(facts.kept_bytes / 2**30, 2)}
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=not smoke)
        one.run = step_of(one, optimizer, clip, sharp)
        peak(one)
        step_ms = statistics.median(timed_ms(one) for _ in range(TURNS))
    except torch.OutOfMemoryError as error:
        return {**row, "outcome": "out of memory", "said": str(error).splitlines()[0][:160]}
    except ConfigError as error:
        return {**row, "outcome": "does not fit", "said": str(error)}
    return {
        **row,
        "outcome": "ran",
        "step_ms": step_ms,
        "samples_per_s": row["batch"] / step_ms * 1e3,
        **one.facts,
        "peak_reserved_gib": 0 if smoke else torch.cuda.max_memory_reserved() / 2**30,
    }


def main() -> None:
    """Measure all rows, and write them down after each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path)
    parser.add_argument("--limit-s", type=float, default=240.0, help="For all rows together.")
    parser.add_argument("--smoke", action="store_true", help="The smallest size, on a CPU.")
    parser.add_argument("--row", help="Used by this file itself.")
    options = parser.parse_args()
    if options.row is not None:
        print(json.dumps(measure(json.loads(options.row), smoke=options.smoke)))
        return
    report: dict[str, Any] = {
        "what": "VRT, published size, 6x256x256, bf16, fused kernels, within caps of memory",
        "hardware": "CPU" if options.smoke else torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "rows": [],
    }
    end_s = time.monotonic() + options.limit_s
    for row in ROWS:
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            break
        report["rows"].append(
            in_a_process_of_its_own(__file__, row, smoke=options.smoke, limit_s=left_s)
        )
        say(str(report["rows"][-1]))
        write(report, options.output)


if __name__ == "__main__":
    main()
