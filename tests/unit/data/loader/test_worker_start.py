import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = '''
import sys
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Loaded:
    """Says whether the module that its index stands for was there before anybody asked for it."""

    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    def sample(self, epoch: int, index: int) -> torch.Tensor:
        return torch.tensor(self.names[index] in sys.modules)


if __name__ == "__main__":
    # Loaded by the one who starts the run alone: a worker comes past here without the guard.
    import pitstop.report.page.html
    from pitstop.config.sections import LoaderSection
    from pitstop.data.loader.batches import build_loader
    from pitstop.data.sampling.samplers import ShuffledBatches

    samples = Loaded(("pitstop.report.page.html", "pitstop.cli.demo.command"))
    order = ShuffledBatches(2, 2, seed=0, drop_last=False, shuffle=False)
    section = LoaderSection.model_validate(
        {"tune": "off", "workers": 1, "start_method": "forkserver"}
    )
    with build_loader(samples, order, torch.stack, section) as loader:
        for batch, _ in loader:
            print(batch.tolist())
'''


@pytest.mark.slow
def test_workers_of_a_server_find_our_modules_loaded_that_the_run_has(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False
    )
    assert done.stdout.split("\n")[0] == "[True, False]", done.stderr
