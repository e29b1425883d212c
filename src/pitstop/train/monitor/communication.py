"""What exchanging gradients between ranks costs, from DDP's own counters."""
# pyright: reportPrivateUsage=false

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pitstop.records.communication import CommunicationReading

# Timing an exchange takes CUDA events and a wait of DDP's own, so not in every step.
_SAMPLED_EVERY = 10


def sample_communication(model: nn.Module) -> None:
    """Have DDP time its exchange every few steps; other models exchange nothing."""
    if isinstance(model, DistributedDataParallel):
        model._set_ddp_runtime_logging_sample_rate(_SAMPLED_EVERY)


def read_communication(model: nn.Module) -> CommunicationReading | None:
    """Read DDP's counters; None without DDP, or before the first sampled step."""
    if not isinstance(model, DistributedDataParallel):
        return None
    data = model._get_ddp_logging_data()
    exchange_ns = data.get("avg_backward_comm_time", 0)
    if not exchange_ns:
        return None
    return CommunicationReading(
        backward_us=data.get("avg_backward_compute_time", 0) / 1e3,
        exchange_us=exchange_ns / 1e3,
        overlapped_us=data.get("avg_backward_compute_comm_overlap_time", 0) / 1e3,
    )
