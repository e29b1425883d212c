"""How fast logs are read, and whether memory follows their size.

    python benchmarks/log_readers.py [--megabytes 32] [--repeats 3] [--output FILE.json]

Three questions, on one core:

- dense: files whose every line is a record of one format, grown from the corpus by counting on.
- skipped: files with one record in a thousand lines, the others of no interest to the reader.
- memory: the peak of a process that reads a file, over that of one that reads a quarter of it.

Reported are megabytes per second, the best of the repeats (others share the machine) and all of
them; the peak is that of the whole process.
"""

import argparse
import json
import os
import platform
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pitstop.logs.formats.tensorboard import TENSORBOARD, masked_crc
from pitstop.logs.read import read_logs
from progress import processor

Line = Callable[[int], str]


def _stamp(second: int) -> str:
    hours, rest = divmod(second % 86400, 3600)
    day = 1 + second // 86400 % 28
    return f"2024-03-{day:02d} {hours:02d}:{rest // 60:02d}:{rest % 60:02d}"


def _mmcv(number: int) -> str:
    step = 50 * (number + 1)
    return (
        f"{_stamp(number * 21)},655 - mmseg - INFO - Iter [{step}/32000000]\tlr: 9.799e-07, eta: 2 "
        f"days, 11:45:59, time: 0.{672 + number % 7}, data_time: 0.012, memory: 7999, "
        f"decode.loss_seg: 4.2275, decode.acc_seg: 0.2135, aux.loss_seg: 1.6832, aux.acc_seg: "
        f"0.3526, loss: 5.{number % 9973}"
    )


def _mmengine(number: int) -> str:
    stamp = _stamp(number * 11).replace("-", "/")
    return (
        f"{stamp} - mmengine - INFO - Iter(train) [{50 * (number + 1)}/30000000]  lr: 9.4416e-03  "
        f"eta: 0:01:52  time: 0.22{number % 90 + 10}  data_time: 0.0040  memory: 3777  loss: 0.0417"
        f"  decode.loss_ce: 0.0292  decode.acc_seg: 84.9457"
    )


def _mmcv_json(number: int) -> str:
    return json.dumps(
        {
            "mode": "train", "epoch": 7, "iter": 10 * (number + 1), "lr": 0.00996, "memory": 5700,
            "data_time": 0.00691, "decode.loss_ce": 0.04493, "decode.acc_seg": 97.88723,
            "aux.loss_ce": 0.02193, "loss": 0.06686, "time": 0.36 + number % 5 / 100,
        }
    )  # fmt: skip


def _fastreid(number: int) -> str:
    return (
        f"[{_stamp(number * 58)[5:].replace('-', '/')} fastreid.utils.events]:  eta: 0:46:32  "
        f"epoch/iter: {number // 9}/{200 * (number + 1) - 1}  total_loss: 42.13  loss_cls: 42.13  "
        f"loss_triplet: 0  time: 0.2903  data_time: 0.0060  lr: 9.98e-03  max_mem: 6056M"
    )


def _transreid(number: int) -> str:
    epoch, inside = divmod(number, 40)
    return (
        f"{_stamp(number * 7)},046 transreid.train INFO: Epoch[{epoch + 1}] Iteration["
        f"{10 * (inside + 1)}/400] Loss: 33.018, Acc: 0.005, Base Lr: 9.81e-04"
    )


def _meter(number: int) -> str:
    epoch, inside = divmod(number, 40)
    return (
        f"Epoch: [{epoch}][{10 * (inside + 1)}/400]\tTime 5.656 (6.7{inside:02d})\tData 0.000 "
        f"(0.497)\tLoss 23.873 (23.973)\tPrec 12.50% (13.25%)\t"
    )


def _timm(number: int) -> str:
    epoch, inside = divmod(number, 40)
    return (
        f"Train: {epoch} [{10 * inside:>4d}/400 (  4%)]  Loss: 6.91 (6.92)  Time: 0.312s,  820.51/s"
        f"  (0.3{inside + 10}s,  810.13/s)  LR: 1.000e-05  Data: 0.004 (0.021)"
    )


def _bar(number: int) -> str:
    second = number // 3
    return (
        f"Training loss=0.5{number % 100:02d} lr=1.00e-04:   0%|          | {number + 1}/20000000 "
        f"[{second // 3600}:{second // 60 % 60:02d}:{second % 60:02d}<7:27:00,  7.45iter/s]"
    )


def _nanogpt(number: int) -> str:
    return (
        f"iter {number * 10}: loss 3.{number % 9973:04d}, time 251.{number % 90 + 10}ms, mfu 38.20%"
    )


def _kair(number: int) -> str:
    return (
        f"{_stamp(number * 110)[2:]}.250 : <epoch:  0, iter:{200 * (number + 1):8,d}, "
        "lr:2.000e-04> G_loss: 1.234e-02 "
    )


def _titan(number: int) -> str:
    return (
        f"[titan] {_stamp(number * 13)},123 - root - INFO - step: {10 * (number + 1):2}  loss:  "
        "7.1234  grad_norm:  1.2345  memory: 47.52GiB(50.02%)  tps: 6,250  tflops: 301.12  "
        "mfu: 30.45%"
    )


def _dict(number: int) -> str:
    return (
        f"{{'loss': 0.1{number % 999:03d}, 'grad_norm': 1.5, 'learning_rate': 0.000197, "
        f"'epoch': {number / 1000}}}"
    )


def _pairs(number: int) -> str:
    return (
        f"{_stamp(number)} step={number + 1} loss=0.5{number % 999:03d} "
        f"step_time_ms=125.{number % 90} data_time_ms=3.10 samples/s=256.00 lr=1e-3"
    )


def _short_dict(number: int) -> str:
    return (
        f"{{'loss': {2 / (1 + number / 1e4):.4f}, "
        f"'learning_rate': {1e-4 / (1 + number / 1e5):.6g}, "
        f"'epoch': {number / 1000}}}"
    )


def _torchreid(number: int) -> str:
    epoch, inside = divmod(number, 20)
    return (
        f"epoch: [{epoch + 1}/60000][{20 * (inside + 1)}/400]\ttime 0.508 (0.8{inside:02d})\tdata "
        f"0.000 (0.301)\teta 5:36:41\tloss 2.8129 (2.7677)\tacc 75.0000 (80.0500)\tlr 0.000300"
    )


def _iter_lines(number: int) -> str:
    return (
        f"iter={50 * (number + 1)} | loss_seg=0.5{number % 9973:04d} | loss_depth=0.100500 | "
        "lr=1.000000e-04"
    )


def _mmengine_json(number: int) -> str:
    return json.dumps(
        {
            "lr": 0.008972727272727273, "data_time": 0.004, "loss": 2.6862280407525474 + number,
            "decode.loss_ce": 1.880359628526783, "time": 0.2281877096418311 + number % 9 / 100,
            "iter": 50 * (number + 1), "memory": 3777, "step": 50 * (number + 1),
        }
    )  # fmt: skip


def _table(number: int) -> str:
    head = "epoch,step,test_loss,train_loss,val_accuracy,val_loss\n" if number == 0 else ""
    return f"{head}{number // 20},{50 * number + 49},,{2.692203029098028 / (number + 1)},,"


def _state(number: int) -> str:
    head = '{\n  "best_metric": 0.4,\n  "log_history": [\n' if number == 0 else ""
    entry = {
        "epoch": number / 5, "grad_norm": 1.5, "learning_rate": 4.5833333333333334e-05,
        "loss": 2.6862 / (number + 1), "step": 50 * (number + 1),
    }  # fmt: skip
    body = "\n".join("    " + line for line in json.dumps(entry, indent=2).split("\n"))
    return f"{head}{body},"


DENSE: dict[str, Line] = {
    "torchreid": _torchreid,
    "general, iter= lines": _iter_lines,
    "mmengine JSON": _mmengine_json,
    "metrics.csv": _table,
    "Hugging Face trainer_state.json": _state,
    "torchtitan": _titan,
    "Hugging Face console": _dict,
    "Hugging Face console, no norm": _short_dict,
    "general, key=value lines": _pairs,
    "mmcv text": _mmcv,
    "mmcv JSON": _mmcv_json,
    "mmengine text": _mmengine,
    "fast-reid text": _fastreid,
    "TransReID family": _transreid,
    "general, meters": _meter,
    "timm": _timm,
    "general, bars": _bar,
    "nanoGPT": _nanogpt,
    "KAIR": _kair,
}
NOISE = (
    "  warnings.warn('this overload is deprecated and will be removed in a later release')",
    "loading annotations into memory... done, and the index of the images was created in no time",
    "| road | 81.21 | 90.02 |   the table of an evaluation, of which a log may hold very many |",
)


def write(path: Path, megabytes: float, lines: Iterator[str]) -> int:
    """Write lines until the file is large enough; give its size in bytes."""
    size, target = 0, int(megabytes * 1e6)
    with path.open("w", encoding="utf-8") as file:
        while size < target:
            chunk = "".join(next(lines) + "\n" for _ in range(1000))
            file.write(chunk)
            size += len(chunk)
    return path.stat().st_size


def dense(line: Line) -> Iterator[str]:
    """Give records and nothing else."""
    number = 0
    while True:
        yield line(number)
        number += 1


def sparse(line: Line) -> Iterator[str]:
    """Give one record in a thousand lines."""
    number = 0
    while True:
        yield (
            line(number // 1000) if number % 1000 == 0 else NOISE[number % len(NOISE)] + str(number)
        )
        number += 1


def write_events(path: Path, megabytes: float) -> int:
    """Write an event file as SummaryWriter does: three scalars a step, one an event."""
    size, target, step = 0, int(megabytes * 1e6), 0
    head = struct.pack("<d", 1.7e9)
    with path.open("wb") as file:
        size += file.write(_framed(b"\x09" + head + b"\x1a\x0dbrain.Event:2"))
        while size < target:
            step += 10
            for tag, value in ((b"train/loss", 2 / step), (b"train/lr", 1e-4), (b"norm", 1.5)):
                inner = b"\x0a" + bytes((len(tag),)) + tag + b"\x15" + struct.pack("<f", value)
                summary = b"\x0a" + bytes((len(inner),)) + inner
                moment = b"\x09" + struct.pack("<d", 1.7e9 + step / 7)
                event = moment + b"\x10" + _varint(step) + b"\x2a" + bytes((len(summary),))
                size += file.write(_framed(event + summary))
    return path.stat().st_size


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))


def _framed(record: bytes) -> bytes:
    length = struct.pack("<Q", len(record))
    crcs = struct.pack("<I", masked_crc(length)), struct.pack("<I", masked_crc(record))
    return length + crcs[0] + record + crcs[1]


def rates(path: Path, size: int, repeats: int, name: str) -> list[float]:
    """Read the file several times; megabytes per second of processor time each."""
    found = []
    for _ in range(repeats):
        started = time.process_time()
        [run] = read_logs([path], format=name)
        found.append(size / 1e6 / (time.process_time() - started))
        assert run.first.windows is not None
        assert len(run.first.windows)
    return found


# From /proc, since what rusage gives begins with the size of whoever started the process.
PEAK = """
import sys
from pathlib import Path
from pitstop.logs.read import read_logs
read_logs([sys.argv[1]])
status = Path("/proc/self/status").read_text()
print(int(status.partition("VmHWM:")[2].split()[0]) * 1024)
"""


def peak_bytes(path: Path) -> int:
    """Read the file in a process of its own; give its peak resident size."""
    command = [sys.executable, "-c", PEAK, str(path)]
    return int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


def main() -> None:
    """Run all and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=32.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    results: dict[str, object] = {
        "benchmark": "log_readers",
        "python": platform.python_version(),
        "processor": f"{processor()}, {os.cpu_count()} seen",
        "megabytes": options.megabytes,
        "unit": "megabytes per second of processor time, one core",
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.log"
        for kind, shape in (("dense", dense), ("skipped", sparse)):
            rows = {}
            for name, line in DENSE.items():
                size = write(path, options.megabytes, shape(line))
                found = rates(path, size, options.repeats, name.partition(",")[0])
                rows[name] = _rounded(kind, name, found)
            if kind == "dense":
                size = write_events(path, options.megabytes)
                found = rates(path, size, options.repeats, TENSORBOARD.name)
                rows[TENSORBOARD.name] = _rounded(kind, TENSORBOARD.name, found)
            results[kind] = rows
        peaks = {}
        for megabytes in (options.megabytes, options.megabytes * 4):
            write(path, megabytes, dense(_mmcv))
            peaks[f"{megabytes:g} MB"] = peak_bytes(path)
        small, large = peaks.values()
        results["peak_bytes"] = peaks
        results["peak_ratio"] = round(large / small, 3)
        print(f"peak     {small / 1e6:.0f} MB -> {large / 1e6:.0f} MB")
    if options.output:
        options.output.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def _rounded(kind: str, name: str, found: list[float]) -> dict[str, object]:
    print(f"{kind:8} {name:32} {max(found):7.1f} MB/s", flush=True)
    return {"best": round(max(found), 1), "all": [round(rate, 1) for rate in found]}


if __name__ == "__main__":
    main()
