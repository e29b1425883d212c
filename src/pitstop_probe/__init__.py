"""What runs inside somebody's training process: a clock, and a writer for what it saw.

Standard library and the script's own torch only, Python 3.9 or newer, so that the package can be
put into any environment. It imports nothing of pitstop; pitstop reads the files it writes.
"""

from pitstop_probe.clock import Clock, Span, Step
from pitstop_probe.device import CudaTimer, cuda_timer
from pitstop_probe.writer import RecordWriter

__all__ = [
    "Clock",
    "CudaTimer",
    "RecordWriter",
    "Span",
    "Step",
    "cuda_timer",
]
