import io

from pitstop.records.host.machine import (
    Advice,
    CopyRate,
    Cpu,
    DecodeRate,
    Gpu,
    Machine,
    MatrixRate,
    Ram,
    Software,
    Volume,
    VolumeRead,
)
from pitstop.records.quantity import Measured
from pitstop.report.machine import ceiling_rows, headline, machine_report, spread_text
from pitstop.report.terminal import make_console

GIB = 1 << 30


def rate(value: float, unit: str, samples: int = 5) -> Measured:
    apart = 0.1 * value if samples > 1 else 0.0
    return Measured(value=value, unit=unit, low=value - apart, high=value + apart, samples=samples)


def gpu(index: int) -> Gpu:
    return Gpu(
        index=index,
        name="NVIDIA H200",
        memory_bytes=140 * GIB,
        compute_capability="9.0",
        multiprocessors=132,
    )


def machine(*, gpus: int = 1, volume: Volume | None = None, limit: int | None = None) -> Machine:
    return Machine(
        system="Linux",
        kernel="6.1",
        architecture="x86_64",
        cpu=Cpu(
            model="Some CPU",
            physical_cores=8,
            logical_cores=16,
            affinity_cores=16,
            quota_cores=4.5,
            usable_cores=4.5,
        ),
        ram=Ram(
            total_bytes=128 * GIB,
            available_bytes=100 * GIB,
            cgroup_limit_bytes=limit,
            cgroup_working_bytes=None,
            shm_bytes=None,
            shm_free_bytes=None,
        ),
        gpus=tuple(gpu(index) for index in range(gpus)),
        software=Software(
            python="3.12.1",
            torch="2.11.0",
            cuda="13.0",
            cudnn=None,
            triton=None,
            pillow=None,
            nvidia_driver=None,
        ),
        matrix_rates=(
            MatrixRate(device="cpu", dtype="fp32", size=1024, threads=4, rate=rate(1e11, "FLOP/s")),
            MatrixRate(
                device="cuda:0", dtype="bf16", size=8192, threads=None, rate=rate(7.9e14, "FLOP/s")
            ),
        ),
        copy_rates=tuple(
            CopyRate(route=route, device="cuda:0", size_bytes=GIB, rate=rate(5e10, "B/s"))
            for route in ("host", "device", "pinned to device", "pageable to device")
        ),
        decode_rates=(
            DecodeRate(
                codec="jpeg",
                width=1280,
                height=720,
                encoded_bytes=300_000,
                images=rate(290.0, "image/s"),
            ),
        ),
        volume=volume,
        advice=(Advice(setting="loader.workers", value="3", arithmetic="4.5 usable cores"),),
        quick=False,
        took_s=9.5,
        notes=("dataset volume: not measured [why]",),
    )


def volume(cache: str) -> Volume:
    read = VolumeRead(
        order="random files",
        files=40,
        read_bytes=GIB,
        rate=rate(1e9, "B/s", samples=1),
        files_per_s=rate(900.0, "file/s"),
        cache=cache,
    )
    return Volume(
        path="data",
        filesystem="ext4",
        files_seen=40,
        bytes_seen=GIB,
        complete=True,
        reads=(read,),
    )


def shown(record: Machine) -> str:
    file = io.StringIO()
    make_console(file).print(machine_report(record))
    return file.getvalue()


def test_the_first_line_says_what_may_be_used_and_of_how_much() -> None:
    line = headline(machine())
    assert line.startswith("4.5 usable cores of Some CPU (16 in all), ")
    assert "NVIDIA H200" in line
    assert "torch 2.11.0" in line
    assert "2 x NVIDIA H200" in headline(machine(gpus=2))
    assert "no GPU" in headline(machine(gpus=0))


def test_a_memory_limit_is_what_counts() -> None:
    assert "memory limited to" in headline(machine(limit=8 * GIB))
    assert "limited" not in headline(machine())


def test_every_measured_rate_has_a_row() -> None:
    names = [name for name, _, _ in ceiling_rows(machine(volume=volume("dropped")))]
    assert names == [
        "fp32 products, cpu",
        "bf16 products, cuda:0",
        "host memory, one thread",
        "memory of cuda:0",
        "pinned host to cuda:0",
        "pageable host to cuda:0",
        "JPEG decoding",
        "dataset, random files",
    ]


def test_a_read_that_may_come_from_memory_says_so_beside_the_number() -> None:
    doubtful = ceiling_rows(machine(volume=volume("may include page cache")))[-1]
    clean = ceiling_rows(machine(volume=volume("dropped")))[-1]
    assert "may include page cache" in doubtful[2]
    assert "page cache dropped" in clean[2]


def test_a_single_reading_is_not_shown_with_a_spread() -> None:
    assert spread_text(rate(5.0, "B/s", samples=1)) == "one reading"
    assert spread_text(rate(5.0, "B/s", samples=5)).endswith("in 5 readings")


def test_result_comes_first_and_the_next_command_last() -> None:
    lines = [line for line in shown(machine()).splitlines() if line.strip()]
    assert "usable cores" in lines[0]
    assert "pitstop machine --data PATH" in lines[-1]
    assert "config check" in shown(machine(volume=volume("dropped"))).splitlines()[-1]


def test_brackets_in_a_note_are_words_and_not_markup() -> None:
    assert "not measured [why]" in shown(machine())
