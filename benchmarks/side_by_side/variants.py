"""The ways in which the opponent is run; PyTorch itself is not needed to name them."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Variant:
    """How the same program is run.

    Attributes:
        title: In the table.
        channels_last: Memory layout of images and weights; PyTorch's own is channels first.
        one_pass: Both views in one forward pass; the paper and tfvmf take two.
        compiled: `torch.compile` of network and loss.
        fused: Adam as one kernel, not as a loop over the weights.
    """

    title: str
    channels_last: bool = False
    one_pass: bool = False
    compiled: bool = False
    fused: bool = False


VARIANTS = {
    "paper": Variant("as the paper has it"),
    "channels_last": Variant("channels last", channels_last=True),
    "tuned": Variant("channels last, one pass, fused Adam", True, one_pass=True, fused=True),
    "compiled": Variant(
        "channels last, fused Adam, torch.compile", channels_last=True, compiled=True, fused=True
    ),
    "compiled_one_pass": Variant(
        "channels last, one pass, fused Adam, torch.compile",
        channels_last=True,
        one_pass=True,
        compiled=True,
        fused=True,
    ),
}
