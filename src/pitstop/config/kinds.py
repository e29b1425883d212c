"""The models pitstop brings along: `model.kind` to the sections that go with it."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from pitstop.config.bev import BEV_MONO, BEV_SURROUND
from pitstop.config.deblur import DEBLUR
from pitstop.config.reid import REID
from pitstop.config.workloads import WorkloadSections

KINDS: Final[Mapping[str, WorkloadSections]] = MappingProxyType(
    {
        "vrt": DEBLUR,
        "vrt_spike": DEBLUR,
        "lss_swin_mono": BEV_MONO,
        "lss_swin_surround": BEV_SURROUND,
        "clip_reid": REID,
    }
)
