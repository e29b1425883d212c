"""Runs that grow while a test looks on: rows of known times, written through the probe's writer."""

import json
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pitstop.report.live.tail import RunTail
from pitstop.report.live.view import LiveView, live_view
from pitstop_probe import Clock, RecordWriter
from tests.fakes import FakeClock


class GrowingRun:
    """One rank of a run; every step waits `wait_us`, computes `work_us` and counts four samples."""

    def __init__(
        self, folder: Path, *, rank: int = 0, world: int = 1, about: Mapping[str, Any] | None = None
    ) -> None:
        self.path = folder / f"rank-{rank}.jsonl"
        self.time = FakeClock(5_000_000)
        self.writer = RecordWriter(
            str(self.path), about={"name": "night", **(about or {})}, now_us=self.time.now_us
        )
        weakref.finalize(self, self.writer.close)
        self.clock = Clock(self.writer, now_us=self.time.now_us)
        self.next_step = 0
        self.writer.flush()
        self.set_head(rank=rank, world_size=world, local_rank=rank)

    def set_head(self, **values: Any) -> None:
        """Change the latest header in place: who the writer says it is."""
        lines = self.path.read_bytes().split(b"\n")
        place = max(n for n, line in enumerate(lines) if line.startswith(b'{"kind":"run"'))
        lines[place] = json.dumps(json.loads(lines[place]) | values, separators=(",", ":")).encode()
        self.path.write_bytes(b"\n".join(lines))

    def step(
        self, count: int = 1, *, wait_us: int = 2_000, work_us: int = 8_000, outside_us: int = 0,
        samples: int | None = 4,
    ) -> None:  # fmt: skip
        for _ in range(count):
            self.clock.begin_step(self.next_step)
            self.next_step += 1
            if outside_us:
                with self.clock.outside_step("evaluation"):
                    self.time.advance(outside_us)
            with self.clock.span("data"):
                self.time.advance(wait_us)
            with self.clock.span("forward"):
                self.time.advance(work_us)
            if samples is not None:
                self.clock.count(samples=samples)

    def end_step(self) -> None:
        """Hand over the step under way, and everything written, without an ending."""
        self.clock.close()
        self.writer.flush()
        self.clock = Clock(self.writer, now_us=self.time.now_us)

    def end(self, status: str = "finished", reason: str = "") -> None:
        self.clock.close()
        self.writer.close(status, reason)


def lives(_: object) -> bool:
    return True


def unknown(_: object) -> None:
    return None


def look(run: RunTail, now_s: float = 100.0, **rest: Any) -> LiveView:
    """Poll and lay out, as if every process lived."""
    run.poll(now_s)
    return live_view(run, now_s=now_s, is_alive=rest.pop("is_alive", lives), **rest)
