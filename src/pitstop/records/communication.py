"""What exchanging gradients between ranks costs, as far as the exchange itself can tell."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicationReading:
    """Mean times of the sampled backward passes so far, in microseconds."""

    backward_us: float
    """From the start of the backward pass to its last gradient; waiting after that is not in it."""
    exchange_us: float
    """From the first bucket sent to the last received."""
    overlapped_us: float
    """The part of the exchange that overlapped with computing."""

    @property
    def exposed_us(self) -> float:
        """The part of the exchange that the step waited for."""
        return max(0.0, self.exchange_us - self.overlapped_us)
