"""The models pitstop brings along: `model.kind` to the sections that go with it."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from pitstop.config.workloads.bev import BEV_MONO, BEV_SURROUND
from pitstop.config.workloads.by_kind import WorkloadSections
from pitstop.config.workloads.deblur import DEBLUR
from pitstop.config.workloads.reid import REID

KINDS: Final[Mapping[str, WorkloadSections]] = MappingProxyType(
    {
        "vrt": DEBLUR,
        "vrt_spike": DEBLUR,
        "lss_swin_mono": BEV_MONO,
        "lss_swin_surround": BEV_SURROUND,
        "clip_reid": REID,
    }
)
