from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitstop.measure.host.cgroup import CgroupReading, read_cgroup

V1_NO_LIMIT = 9223372036854771712


def write(root: Path, files: dict[str, object]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


def v2(root: Path, group: str, files: dict[str, object]) -> Path:
    base = f"sys/fs/cgroup/{group}".rstrip("/")
    return write(
        root,
        {
            "proc/self/cgroup": f"0::/{group}",
            "sys/fs/cgroup/cgroup.procs": "1",
            **{f"{base}/{name}": content for name, content in files.items()},
        },
    )


def v1(root: Path, group: str, files: dict[str, object]) -> Path:
    lines = f"4:memory:/{group}\n2:cpu,cpuacct:/{group}\n0::/"
    return write(
        root,
        {
            "proc/self/cgroup": lines,
            **{f"sys/fs/cgroup/{name}": content for name, content in files.items()},
        },
    )


def test_a_limited_v2_group_tells_limit_use_and_quota(tmp_path: Path) -> None:
    root = v2(
        tmp_path,
        "job",
        {
            "memory.max": 4096,
            "memory.current": 3000,
            "memory.stat": "anon 1900\ninactive_file 1000\nactive_file 100",
            "cpu.max": "150000 100000",
            "cpu.stat": "usage_usec 5\nthrottled_usec 2500000",
        },
    )
    assert read_cgroup(root) == CgroupReading(
        memory_limit_bytes=4096,
        memory_usage_bytes=3000,
        memory_working_bytes=2000,
        quota_cores=1.5,
        throttled_s=2.5,
    )


def test_an_unlimited_v2_group_has_no_limit_rather_than_a_huge_one(tmp_path: Path) -> None:
    root = v2(tmp_path, "", {"memory.max": "max", "memory.current": 7, "cpu.max": "max 100000"})
    found = read_cgroup(root)
    assert (found.memory_limit_bytes, found.quota_cores) == (None, None)
    assert found.memory_usage_bytes == 7
    assert found.memory_working_bytes is None, "without memory.stat the share of cache is unknown"


def test_a_limited_v1_group_tells_limit_use_and_quota(tmp_path: Path) -> None:
    root = v1(
        tmp_path,
        "job",
        {
            "memory/job/memory.limit_in_bytes": 4096,
            "memory/job/memory.usage_in_bytes": 3000,
            "memory/job/memory.stat": "inactive_file 1\ntotal_inactive_file 1000",
            "cpu,cpuacct/job/cpu.cfs_quota_us": 50000,
            "cpu,cpuacct/job/cpu.cfs_period_us": 100000,
            "cpu,cpuacct/job/cpu.stat": "nr_periods 9\nthrottled_time 1500000000",
        },
    )
    assert read_cgroup(root) == CgroupReading(
        memory_limit_bytes=4096,
        memory_usage_bytes=3000,
        memory_working_bytes=2000,
        quota_cores=0.5,
        throttled_s=1.5,
    )


def test_an_unlimited_v1_group_has_no_limit_rather_than_a_huge_one(tmp_path: Path) -> None:
    root = v1(
        tmp_path,
        "job",
        {
            "memory/job/memory.limit_in_bytes": V1_NO_LIMIT,
            "memory/job/memory.usage_in_bytes": 5,
            "cpu/job/cpu.cfs_quota_us": -1,
            "cpu/job/cpu.cfs_period_us": 100000,
        },
    )
    found = read_cgroup(root)
    assert (found.memory_limit_bytes, found.quota_cores) == (None, None)
    assert found.memory_usage_bytes == 5


def test_a_limit_on_a_parent_binds_and_its_use_is_the_one_that_counts(tmp_path: Path) -> None:
    root = v2(tmp_path, "pod/job", {"memory.max": 9000, "memory.current": 10})
    v2(tmp_path, "pod", {"memory.max": 5000, "memory.current": 4000, "cpu.max": "200000 100000"})
    write(tmp_path, {"proc/self/cgroup": "0::/pod/job"})
    found = read_cgroup(root)
    assert (found.memory_limit_bytes, found.memory_usage_bytes) == (5000, 4000)
    assert found.quota_cores == 2.0


@pytest.mark.parametrize("path", ["docker/0123456789", "../../other"])
def test_a_group_path_of_the_host_falls_back_to_the_mount(tmp_path: Path, path: str) -> None:
    v2(tmp_path, "", {"memory.current": 1, "cpu.stat": "throttled_usec 2000000"})
    write(tmp_path, {"proc/self/cgroup": f"0::/{path}"})
    write(tmp_path / "sys/other", {"memory.current": 999, "cpu.stat": "throttled_usec 999"})
    found = read_cgroup(tmp_path)
    assert (found.memory_usage_bytes, found.throttled_s) == (1, 2.0)


def test_a_system_without_control_groups_knows_nothing(tmp_path: Path) -> None:
    assert read_cgroup(tmp_path) == CgroupReading()


@settings(deadline=None, max_examples=40)
@given(
    limits=st.lists(
        st.one_of(st.just("max"), st.integers(1, 1 << 50).map(str)), min_size=1, max_size=5
    )
)
def test_the_tightest_limit_of_the_chain_wins(
    tmp_path_factory: pytest.TempPathFactory, limits: list[str]
) -> None:
    root = tmp_path_factory.mktemp("chain")
    folder = root / "sys/fs/cgroup"
    for depth, limit in enumerate(limits):
        folder = folder / f"g{depth}" if depth else folder
        write(folder, {"memory.max": limit, "cgroup.procs": "1"})
    group = folder.relative_to(root / "sys/fs/cgroup")
    write(root, {"proc/self/cgroup": f"0::/{'' if str(group) == '.' else group}"})
    numbers = [int(limit) for limit in limits if limit != "max"]
    assert read_cgroup(root).memory_limit_bytes == (min(numbers) if numbers else None)
