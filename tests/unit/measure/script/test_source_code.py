"""Which commit a script stands in, against git itself."""

import subprocess
from pathlib import Path

import pytest

from pitstop.measure.script.source_code import commit_of, source_of


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", "-C", str(folder), *who, *words], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "tools").mkdir(parents=True)
    git(folder, "init", "--quiet")
    (folder / "tools" / "train.py").write_text("pass\n")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "first")
    return folder


def test_the_commit_around_a_script_is_that_of_git(repository: Path) -> None:
    command = ["torchrun", "--nproc_per_node=2", str(repository / "tools" / "train.py"), "--lr=1"]
    found = source_of(command)
    assert found.script == "train.py"
    assert found.commit == git(repository, "rev-parse", "HEAD")


@pytest.mark.parametrize(
    "words",
    [("pack-refs", "--all"), ("checkout", "--quiet", "--detach"), ("branch", "-m", "a/b")],
    ids=["packed", "detached", "a branch in a folder"],
)
def test_wherever_git_keeps_it(repository: Path, words: tuple[str, ...]) -> None:
    git(repository, *words)
    assert commit_of(repository / "tools") == git(repository, "rev-parse", "HEAD")


def test_a_worktree_has_its_own_commit(repository: Path, tmp_path: Path) -> None:
    git(repository, "worktree", "add", "--quiet", str(tmp_path / "other"), "-b", "other")
    git(tmp_path / "other", "commit", "--quiet", "--allow-empty", "-m", "second")
    assert commit_of(tmp_path / "other") == git(tmp_path / "other", "rev-parse", "HEAD")
    assert commit_of(repository) != commit_of(tmp_path / "other")


@pytest.mark.parametrize("head", [b"", b"ref: refs/heads/none", b"\xff\xfe", b"not a commit"])
def test_what_git_does_not_tell_is_not_known(tmp_path: Path, head: bytes) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_bytes(head)
    assert commit_of(tmp_path) is None


def test_a_repository_without_a_commit_and_a_file_that_leads_nowhere(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet", "empty")
    assert commit_of(tmp_path / "empty") is None
    (tmp_path / "lost").mkdir()
    (tmp_path / "lost" / ".git").write_text("gitdir: ../nowhere\n")
    assert commit_of(tmp_path / "lost") is None
