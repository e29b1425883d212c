"""What exchanging between ranks costs, as far as the exchange itself can tell."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicationReading:
    """Mean times of the sampled passes so far, in microseconds."""

    exchange_us: float
    """From the first bucket sent to the last received; of a divided model, all its collectives."""
    overlapped_us: float
    """The part of the exchange that overlapped with computing."""
    backward_us: float | None = None
    """From the start of the backward pass to its last gradient; waiting after that is not in it.
    None where nobody timed it."""
    gather_us: float | None = None
    """Of a divided model: gathering its weights, forward and backward, in one step."""
    reduce_us: float | None = None
    """Of a divided model: dividing its gradients, in one step."""

    @property
    def exposed_us(self) -> float:
        """The part of the exchange that the step waited for."""
        return max(0.0, self.exchange_us - self.overlapped_us)
