"""Puts the wanted interventions into a process, as soon as it has torch."""

from typing import Any, Dict, List

from pitstop_probe.hooks.patches import Patch
from pitstop_probe.interventions.loaders import change_loaders
from pitstop_probe.interventions.models import ModelChanges
from pitstop_probe.interventions.optimizers import change_optimizers
from pitstop_probe.interventions.seeds import seed
from pitstop_probe.interventions.sites import Sites
from pitstop_probe.interventions.switches import set_switches


def intervene(torch: Any, wanted: Dict[str, Any], folder: str) -> List[Patch]:
    """Change what is wanted, and note what the script builds.

    Args:
        torch: The script's torch.
        wanted: ``changes`` as ``name=value``, ``loaders`` the lines whose loaders are changed (None
            for all), ``seed`` what is added to every seed.
        folder: Of the record.
    """
    changes = dict(word.split("=", 1) for word in wanted["changes"])
    sites = Sites(folder)
    models = ModelChanges(torch, changes, sites)
    return [
        *seed(torch, wanted["seed"]),
        *set_switches(torch, changes, sites),
        *change_loaders(torch, changes, wanted["loaders"], sites),
        *change_optimizers(torch, changes, sites, models.built),
    ]
