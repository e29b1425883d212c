"""Reads losses without waiting for them: on a GPU they are copied, and read once they are there."""

from typing import Any, Callable, List, Tuple

from pitstop_probe.forks import stays_here

# A step's number, where its loss is copied to, and what tells that it is there.
_Copy = Tuple[int, Any, Any]


class Losses:
    """Losses on their way from the device.

    Args:
        torch: The script's torch.
        write: Takes a step's number and its loss.
    """

    def __init__(self, torch: Any, write: Callable[[int, float], None]) -> None:
        self._torch = torch
        self._write = write
        self._coming: List[_Copy] = []
        # Memory that a device copies to without anybody waiting is dear to get.
        self._spare: List[Tuple[Any, Any]] = []

    def take(self, step: int, loss: Any) -> None:
        """Take the loss of a step; it is written now or, from a GPU, when `write_arrived` is."""
        if not loss.is_cuda:
            self._write(step, float(loss))
            return
        place, arrived = self._place_for(loss)
        place.copy_(loss, non_blocking=True)
        arrived.record()
        self._coming.append((step, place, arrived))

    def write_arrived(self) -> None:
        """Write what has come from the device meanwhile."""
        coming = []
        for step, place, arrived in self._coming:
            if arrived.query():
                self._write(step, float(place))
                self._spare.append((place, arrived))
            else:
                coming.append((step, place, arrived))
        self._coming = coming

    def clear(self) -> None:
        """Forget everything, in a process just forked: it cannot read its parent's device."""
        self._coming, self._spare = [], []

    def _place_for(self, loss: Any) -> Tuple[Any, Any]:
        if self._spare and self._spare[-1][0].dtype == loss.dtype:
            return self._spare.pop()
        place = self._torch.empty((), dtype=loss.dtype, device="cpu", pin_memory=True)
        # In a forked process a loss of the parent's may neither be read nor let go of.
        return stays_here(place), stays_here(self._torch.cuda.Event())
