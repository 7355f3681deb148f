"""The corruptions of the CIFAR-10-C protocol, generated: 19 kinds at 5 severities.

    corrupted = corrupt(images, "glass_blur", severity=3)

The parameters are those of the published CIFAR-10 generator. The package `imagecorruptions` has
those for ImageNet, and draws from NumPy's global state. The result is not CIFAR-10-C: the random
numbers differ, and motion blur does not use ImageMagick. The statistics are the same
(benchmarks/corruption_fidelity.py). A new corruption is one function and one line in `kinds.KINDS`.
"""

import concurrent.futures
import difflib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tfvmf import cores
from tfvmf.data.corruptions import kinds
from tfvmf.data.corruptions.filters import Draws, Images
from tfvmf.data.corruptions.weather import frost_source as frost_source
from tfvmf.errors import UserError

SOURCE = "CIFAR-10-C protocol, generated"
SEVERITIES = (1, 2, 3, 4, 5)
ALL_CORRUPTIONS = tuple(kinds.KINDS)
CORRUPTIONS = ALL_CORRUPTIONS[:-1]  # those of the paper's Table 1: without shot noise

# Names that differ in TensorFlow Datasets' cifar10_corrupted.
TFDS_NAMES = {"glass_blur": "frosted_glass_blur", "elastic_transform": "elastic"}
_ALIASES = {alias: name for name, alias in TFDS_NAMES.items()} | {"jpeg": "jpeg_compression"}

SMALLEST_SIDE = 8
# Pixels corrupted at once: a few float32 copies of them stay in the processor's cache.
_CHUNK_PIXELS = 128 * 32 * 32
_THREADS = 4  # upper bound


def tfds_spec(name: str, severity: int) -> str:
    """The TFDS name of the corrupted test images of CIFAR-10."""
    return f"cifar10_corrupted/{TFDS_NAMES.get(name, name)}_{severity}"


def corrupt(
    images: Images,
    name: str,
    severity: int,
    seed: int = 0,
    *,
    first_index: int = 0,
    indices: Sequence[int] | npt.NDArray[np.integer] | None = None,
) -> Images:
    """Corrupts a batch of images: uint8 [N, H, H, 3], a new array.

    The random numbers of an image depend only on (seed, name, severity, index in its data set),
    so they do not depend on how a data set is batched or sampled.

    Args:
        images: uint8 [N, H, H, 3], H at least 8.
        name: one of `ALL_CORRUPTIONS`, or its TFDS name.
        severity: 1 (mild) to 5 (severe).
        seed: seed of the random numbers.
        first_index: index of images[0] in its data set, if the images are consecutive.
        indices: indices [N] of all images, if they are not.
    """
    name = canonical_name(name)
    whole = isinstance(severity, int | np.integer) and not isinstance(severity, bool)
    if not whole or severity not in SEVERITIES:
        raise UserError(f"severity is {severity!r}: expected an integer from 1 to 5")
    is_array = isinstance(images, np.ndarray)
    side = images.shape[1] if is_array and images.ndim == 4 else 0
    if side < SMALLEST_SIDE or images.dtype != np.uint8 or images.shape[1:] != (side, side, 3):
        found = f"{images.dtype} {list(images.shape)}" if is_array else f"a {type(images).__name__}"
        raise UserError(
            f"images are {found}: expected a NumPy array, uint8 [N, H, H, 3] with H at least "
            f"{SMALLEST_SIDE}"
        )
    function, levels = kinds.KINDS[name]
    level = levels[severity - 1]
    parameters = level if isinstance(level, tuple) else (level,)
    corrupted = np.empty(images.shape, np.uint8)
    places = range(first_index, first_index + len(images)) if indices is None else indices
    size = max(1, _CHUNK_PIXELS // side**2)

    def run(start: int) -> None:
        part = slice(start, start + size)
        draws = Draws(f"{seed}/{name}/{severity}", places[part])
        pixels = function(np.ascontiguousarray(images[part]), draws, *parameters)
        if pixels.dtype != np.uint8:
            # Truncated to whole levels, as in the published program. float32 may miss a level by a
            # rounding error from below (254.99998 for 255), so a thousandth of a level is added.
            pixels = np.clip(pixels + np.float32(1e-3), 0, 255)
        corrupted[part] = pixels

    # NumPy and Pillow release the interpreter lock in their loops, so threads suffice.
    with concurrent.futures.ThreadPoolExecutor(min(_THREADS, cores.available())) as pool:
        list(pool.map(run, range(0, len(images), size)))
    return corrupted


def canonical_name(name: str) -> str:
    """The name in `ALL_CORRUPTIONS` for any spelling: "Glass Blur", "frosted_glass_blur", ..."""
    plain = name.strip().lower().replace(" ", "_").replace("-", "_")
    plain = _ALIASES.get(plain, plain)
    if plain not in kinds.KINDS:
        near = difflib.get_close_matches(plain, [*ALL_CORRUPTIONS, *_ALIASES], n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else ""
        known = f"known are {', '.join(ALL_CORRUPTIONS)}"
        raise UserError(f"unknown corruption {name!r}: {hint or known}")
    return plain
