"""How fast one core turns compressed pictures into pixels, on a picture made here.

The picture has the statistics of a photograph (contrast falling with spatial frequency, a little
sensor noise), because flat or random pixels would compress and decode at rates no dataset shows.
"""

import io
import time
from collections.abc import Callable
from types import ModuleType
from typing import Final

import numpy as np
import numpy.typing as npt

from pitstop.measure.machine.repeats import repeated_rates
from pitstop.records.host.machine import DecodeRate
from pitstop.records.quantity import measured

WIDTH: Final = 1280
HEIGHT: Final = 720
_JPEG_QUALITY: Final = 95

# Chosen so that the compressed sizes are those of photographs of this size: a picture of 1280x720
# with these takes about 0.3 MB as JPEG and 1.3 MB as PNG.
_SPECTRUM_SLOPE: Final = 1.5
_CONTRAST: Final = 50.0
_COLOUR_SHARE: Final = 0.02
_SENSOR_NOISE: Final = 0.3


def measure_decoding(
    pillow: ModuleType,
    *,
    repeats: int,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[DecodeRate, ...]:
    """Decode one JPEG and one PNG over and over in this thread.

    Args:
        pillow: The module ``PIL.Image``.
        repeats: How many samples to take of each.
        seconds: About how long all samples of one format take together.
        clock: Monotonic seconds.
    """
    picture = pillow.fromarray(natural_picture(WIDTH, HEIGHT))
    found: list[DecodeRate] = []
    for codec, options in (("jpeg", {"quality": _JPEG_QUALITY}), ("png", {})):
        file = io.BytesIO()
        picture.save(file, format=codec, **options)
        encoded = file.getvalue()

        def decode(encoded: bytes = encoded) -> None:
            pillow.open(io.BytesIO(encoded)).load()

        decode()
        rates = repeated_rates(decode, repeats=repeats, seconds=seconds, clock=clock)
        images = measured(rates, "image/s")
        if images is not None:
            found.append(
                DecodeRate(
                    codec=codec,
                    width=WIDTH,
                    height=HEIGHT,
                    encoded_bytes=len(encoded),
                    images=images,
                )
            )
    return tuple(found)


def natural_picture(width: int, height: int) -> npt.NDArray[np.uint8]:
    """Make an RGB picture whose contrast falls with spatial frequency, as in photographs."""
    random = np.random.default_rng(0)
    down = np.fft.fftfreq(height)[:, None]
    across = np.fft.rfftfreq(width)[None, :]
    frequency = np.sqrt(down**2 + across**2)
    frequency[0, 0] = np.inf
    shared = random.standard_normal((height, width))
    planes: list[npt.NDArray[np.float64]] = []
    for _ in range(3):
        # Colours of a photograph vary together; independent planes would look like confetti.
        noise = shared + _COLOUR_SHARE * random.standard_normal((height, width))
        plane = np.fft.irfft2(np.fft.rfft2(noise) / frequency**_SPECTRUM_SLOPE, s=(height, width))
        plane = 128 + _CONTRAST * plane / plane.std()
        planes.append(plane + _SENSOR_NOISE * random.standard_normal(plane.shape))
    return np.clip(np.stack(planes, axis=-1), 0, 255).astype(np.uint8)
