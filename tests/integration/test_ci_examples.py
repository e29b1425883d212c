"""The jobs for GitHub and GitLab, their steps executed: a slower commit fails, an equal not."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

EXAMPLES = Path(__file__).parents[2] / "examples" / "ci"

# Data is made in the loop; the other commit makes each number of it by itself.
TRAIN = """
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
dataset = [torch.full((64,), float(n)) for n in range(640)]
def make(rows):
    return torch.stack([{make} for row in rows])
loader = torch.utils.data.DataLoader(dataset, batch_size=8, collate_fn=make)
for batch in loader:
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
FAST = "row.clone()"
SLOW = "torch.tensor([float(number) for number in row for _ in range(8)][::8])"


def git(folder: Path, *arguments: str) -> str:
    named = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    done = subprocess.run(
        ["git", *named, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository whose last commit may be changed."""
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "--quiet")
    shutil.copy(EXAMPLES / "step_time.sh", folder)
    (folder / "train.py").write_text(TRAIN.format(make=FAST))
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "fast")
    return folder


def github_step() -> str:
    (job,) = yaml.safe_load((EXAMPLES / "github.yml").read_text())["jobs"].values()
    return next(step["run"] for step in job["steps"] if step.get("name") == "compare")


def gitlab_step() -> str:
    found: dict[str, Any] = yaml.safe_load((EXAMPLES / "gitlab.yml").read_text())
    return "\n".join(found["step-time"]["script"])


def run(step: str, project: Path, base: str) -> "subprocess.CompletedProcess[str]":
    own = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # noqa: TID251
        "BASE_COMMIT": base,
        "CI_MERGE_REQUEST_DIFF_BASE_SHA": base,
        "STEPS": "40",
    }
    return subprocess.run(
        ["bash", "-eo", "pipefail", "-c", step],
        cwd=project,
        env={**os.environ, **own},  # noqa: TID251
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.quiet
def test_a_slower_commit_fails_the_github_job(project: Path) -> None:
    base = git(project, "rev-parse", "HEAD")
    (project / "train.py").write_text(TRAIN.format(make=SLOW))
    done = run(github_step(), project, base)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "slower in 3 of 3 pairs" in done.stdout
    assert git(project, "worktree", "list").count("\n") == 0, "the other commit's folder is gone"


@pytest.mark.slow
@pytest.mark.quiet
def test_an_equal_commit_passes_the_gitlab_job(project: Path) -> None:
    done = run(gitlab_step(), project, git(project, "rev-parse", "HEAD"))
    assert done.returncode == 0, done.stdout + done.stderr
