"""The recipes that the search compares, by name."""

import dataclasses
import math
from typing import Any

from tfvmf import data


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that shapes an encoder, and what it costs to train it.

    The defaults are the third line of the first probes: the trunk of `convnet8` at width 16, views
    of 24 px, temperature 0.2, Adam; gray 0.1 and jitter 0.4 as in dkobak/simclr-cifar10.
    """

    channels: tuple[int, ...] = (16, 32, 128, 256)
    depth: int = 2
    residual: bool = False
    activation: str = "relu"
    features: str = "last"
    whitening: bool = False
    hidden: tuple[int, ...] = (512,)
    dimension: int = 128
    batch: int = 256
    sizes: tuple[int, ...] = (24,)  # of global views: equal shares of the budget, in this order
    global_views: int = 2
    local_views: int = 0
    local_size: int = 16
    crop_min: float = 0.2
    crop_max: float = 1.0
    local_crop_min: float = 0.1
    local_crop_max: float = 0.5
    jitter: float = 0.4
    hue: float = 0.1
    gray: float = 0.1
    loss: str = "nt_xent"
    temperature: float = 0.2
    invariance: float = 200.0  # of the coding rate
    queue: int = 0
    optimizer: str = "adam"
    rate: float = 2e-3
    momentum: float = 0.9
    weight_decay: float = 1e-6
    warmup: float = 0.05  # share of the budget

    def size_at(self, share: float) -> int:
        """Height of the global views when this share of the budget is spent."""
        return self.sizes[min(int(share * len(self.sizes)), len(self.sizes) - 1)]

    def rate_at(self, share: float) -> float:
        """The learning rate: a linear rise, then a cosine to 0."""
        if share < self.warmup:
            return self.rate * (share + 1e-3) / (self.warmup + 1e-3)
        return self.rate * 0.5 * (1 + math.cos(math.pi * (share - self.warmup) / (1 - self.warmup)))

    def augmentation(self, size: int) -> data.Augmentation:
        """Of global views."""
        return data.Augmentation(
            size=size,
            crop_min=self.crop_min,
            crop_max=self.crop_max,
            brightness=self.jitter,
            contrast=self.jitter,
            saturation=self.jitter,
            hue=self.hue,
            gray_probability=self.gray,
        )

    def local_augmentation(self) -> data.Augmentation:
        """Of local views."""
        local = dataclasses.replace(
            self, crop_min=self.local_crop_min, crop_max=self.local_crop_max
        )
        return local.augmentation(self.local_size)


BASE = Recipe()
MUON = dataclasses.replace(BASE, optimizer="muon", rate=0.03, weight_decay=0.0)


def _base(**changes: Any) -> Recipe:
    return dataclasses.replace(BASE, **changes)


def _muon(**changes: Any) -> Recipe:
    return dataclasses.replace(MUON, **changes)


RECIPES: dict[str, Recipe] = {
    "base": BASE,
    "sgd": _base(optimizer="sgd", rate=0.12, weight_decay=5e-4),
    "lars": _base(optimizer="lars", rate=0.03, weight_decay=1e-4),
    "local2": _base(local_views=2),
    "muon": MUON,
    "muon_rate0.1": _muon(rate=0.1),
    "muon_rate0.06": _muon(rate=0.06),
    "muon_t0.1": _muon(temperature=0.1),
    "muon_t0.3": _muon(temperature=0.3),
    "muon_t0.5": _muon(temperature=0.5),
    "muon_batch128": _muon(batch=128),
    "muon_batch512": _muon(batch=512),
    "muon_wide": _muon(channels=(32, 64, 256, 256)),
    "muon_wide_end": _muon(channels=(16, 32, 128, 512)),
    "muon_deep": _muon(depth=3),
    "muon_residual": _muon(depth=3, residual=True),
    "muon_last2": _muon(features="last2"),
    "muon_whitening": _muon(whitening=True),
    "muon_local2": _muon(local_views=2),
    "muon_local4": _muon(local_views=4, batch=128),
    "muon_global4": _muon(global_views=4, batch=128),
    "muon_size16": _muon(sizes=(16,)),
    "muon_size20": _muon(sizes=(20,)),
    "muon_size32": _muon(sizes=(32,)),
    "muon_progressive": _muon(sizes=(16, 20, 24)),
    "muon_projector": _muon(hidden=(1024,)),
    "muon_crop": _muon(crop_min=0.3),
    "muon_small_crop": _muon(crop_min=0.1),
    "muon_jitter": _muon(jitter=0.5, gray=0.2),
    "muon_dcl": _muon(loss="dcl"),
    "muon_nnclr": _muon(loss="nt_xent+nnclr", queue=8192),
    "muon_teacher": _muon(loss="nt_xent+teacher"),
    "muon_vicreg": _muon(loss="vicreg", hidden=(1024, 1024), dimension=512),
    "muon_coding_rate": _muon(loss="coding_rate", dimension=256, local_views=4, batch=128),
}
