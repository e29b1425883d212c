"""Stages add up to what passed, each second counted once; where nobody gathers they do nothing."""

import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.data.loader.stages import gathering, stage
from tests.fakes import FakeClock

Tree = list[tuple[str, int, "Tree"]]

trees = st.recursive(
    st.just([]),
    lambda inner: st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 99), inner)),
    max_leaves=12,
)


@given(tree=trees)
def test_stages_add_up_to_the_time_that_passed_in_them(tree: Tree) -> None:
    clock, wanted = FakeClock(), {}

    def walk(level: Tree) -> None:
        for name, own, inner in level:
            wanted[name] = wanted.get(name, 0) + own
            with stage(name):
                clock.advance(own)
                walk(inner)

    with gathering(clock.now_us) as times:
        walk(tree)
    assert times.total_ns == wanted
    assert sum(times.total_ns.values()) == clock.now_us()


def test_a_stage_that_fails_is_counted_and_closed() -> None:
    clock = FakeClock()

    def fail() -> None:
        with stage("read"):
            clock.advance(5)
            raise EOFError

    with gathering(clock.now_us) as times:
        with pytest.raises(EOFError):
            fail()
        with stage("decode"):
            clock.advance(2)
    assert times.total_ns == {"read": 5, "decode": 2}


def test_nobody_gathers_what_other_threads_do() -> None:
    def read() -> None:
        with stage("elsewhere"):
            pass

    with gathering() as times:
        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
    with stage("afterwards"):
        pass
    assert times.total_ns == {}


def test_stages_need_no_torch() -> None:
    code = "import sys, pitstop.data.loader.stages; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
