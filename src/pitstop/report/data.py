"""Datasets in words."""

import shlex
from typing import TYPE_CHECKING

from rich.text import Text

from pitstop.report.units import bytes_text, count_text, seconds_text

if TYPE_CHECKING:
    from pitstop.workloads.deblur.synthetic import MadeClips


def made_clips_report(made: "MadeClips") -> Text:
    """Say what was generated, and how to train on it."""
    clips = " and ".join(f"{count} {split}" for split, count in made.clips.items())
    size = f"{made.height}x{made.width}"
    text = Text(f"made {clips} clips of {count_text(made.frames, 'frame')} of {size}", "bold")
    spikes = "no spikes"
    if made.spike_height is not None:
        spikes = f"spikes of {made.spike_height}x{made.spike_width}"
    facts = (made.root, spikes, bytes_text(made.size_bytes), f"seed {made.seed}")
    text.append(f"\n{', '.join(facts)}, in {seconds_text(made.took_s)}", "not bold")
    setting = shlex.quote(f"data.root={made.root}")
    text.append(f"\nnext: pitstop config check configs/deblur/small.yaml {setting}", "not bold")
    return text
