from pathlib import Path

import psutil

from pitstop.measure.host.limits import read_host_limits

GIB = 2**30


def host(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    marker = {"sys/fs/cgroup/cgroup.procs": "1"}  # every mount of version 2 has it
    for name, text in {"proc/self/cgroup": cgroup, **marker, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def test_without_control_groups_the_machine_itself_is_the_limit(tmp_path: Path) -> None:
    limits = read_host_limits(tmp_path)
    assert limits.memory_bytes == psutil.virtual_memory().total
    assert limits.cores >= 1


def test_version_2_takes_the_tightest_group_on_the_way_up(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/a/b/memory.max": "max",
        "sys/fs/cgroup/a/memory.max": str(GIB // 4),
        "sys/fs/cgroup/a/b/cpu.max": "50000 100000",
        "sys/fs/cgroup/a/cpu.max": "max 100000",
    }
    limits = read_host_limits(host(tmp_path, "0::/a/b", files))
    assert (limits.cores, limits.memory_bytes) == (1, GIB // 4)


def test_version_1_has_a_tree_for_each_controller(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": str(GIB // 8),
        "sys/fs/cgroup/memory/memory.limit_in_bytes": str(2**63 - 4096),
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
    }
    limits = read_host_limits(host(tmp_path, "4:memory:/job\n3:cpu,cpuacct:/job", files))
    assert limits.memory_bytes == GIB // 8
    assert limits.cores == read_host_limits(tmp_path / "nowhere").cores


def test_inside_a_container_the_limit_stands_at_the_mount(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/memory/memory.limit_in_bytes": str(GIB // 2)}
    cgroup = "4:memory:/docker/0123456789"
    assert read_host_limits(host(tmp_path, cgroup, files)).memory_bytes == GIB // 2


def test_nonsense_in_the_files_is_no_limit(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/memory.max": "many",
        "sys/fs/cgroup/cpu.max": "1 0",
        "sys/fs/cgroup/x/cpu.max": "",
    }
    for cgroup in ("0::/x", "0::/../..", "rubbish", ":::", "0::"):
        limits = read_host_limits(host(tmp_path, cgroup, files))
        assert limits.memory_bytes == psutil.virtual_memory().total
