"""What both programs train: the sizes, and nothing that needs TensorFlow or PyTorch."""

import dataclasses
from typing import Any

_BLOCKS = {
    "resnet10": (1, 1, 1, 1),
    "resnet18": (2, 2, 2, 2),
    "resnet34": (3, 4, 6, 3),
    "resnet50": (3, 4, 6, 3),
}
_PLAIN = {"convnet8": (2, 8, 16)}  # channels of the stages after the stem, over the width


@dataclasses.dataclass(frozen=True)
class Problem:
    """A network and a batch.

    Attributes:
        backbone: `resnet10`, `resnet18`, `resnet34`, `resnet50` or `convnet8`, with the stem for
            small images.
        width: Channels of its first stage.
        batch: Images; each is two views.
        image_size: Height and width.
        dimension: Length of the directions.
        hidden: Width of the hidden layer of both heads.
    """

    backbone: str = "resnet18"
    width: int = 16
    batch: int = 256
    image_size: int = 32
    dimension: int = 128
    hidden: int = 512

    @property
    def blocks(self) -> tuple[int, ...]:
        """Of each stage of a ResNet; () for a network without blocks."""
        return () if self.plain else _BLOCKS[self.backbone]

    @property
    def plain(self) -> tuple[int, ...]:
        """Channels of each stage after the stem of a network without blocks; () for a ResNet."""
        return tuple(multiple * self.width for multiple in _PLAIN.get(self.backbone, ()))

    @property
    def bottleneck(self) -> bool:
        """Whether a block is a bottleneck of three convolutions."""
        return self.backbone == "resnet50"

    @property
    def network(self) -> str:
        """In the table."""
        return f"{self.backbone.replace('resnet', 'ResNet-')} of width {self.width}"

    @property
    def title(self) -> str:
        """In the table."""
        return f"{self.network}, batch {self.batch}"

    def config_changes(self) -> dict[str, Any]:
        """As dotted settings of a run."""
        return {
            "batch_size": self.batch,
            "data.image_size": self.image_size,
            "model.backbone": self.backbone,
            "model.width": self.width,
            "model.dimension": self.dimension,
            "model.hidden": self.hidden,
        }

    def settings(self) -> dict[str, Any]:
        """As keywords of a candidate."""
        return dataclasses.asdict(self)


QUICK = Problem(
    backbone="resnet10", width=2, batch=8, image_size=8, dimension=8, hidden=8
)  # for a smoke run
