"""The opponent: the paper's PyTorch program, written from its appendix, and the same made faster.

Network, heads, loss and optimizer are those of the appendix, without torchvision: its ResNet is
rebuilt here so that it can be as narrow as ours. Views are made already and lie in memory, in the
layout of the variant. Nothing of tfvmf is used, and TensorFlow is in another process: two pools of
threads in one would fight.
"""

from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.side_by_side.problem import Problem
from benchmarks.side_by_side.variants import VARIANTS


class Block(nn.Module):
    """A residual block of torchvision's ResNet: two 3x3 convolutions, or a bottleneck of three."""

    def __init__(self, inputs: int, channels: int, stride: int, *, bottleneck: bool) -> None:
        super().__init__()
        outputs = channels * (4 if bottleneck else 1)
        plan = (
            [(1, 1, channels), (3, stride, channels), (1, 1, outputs)]
            if bottleneck
            else [(3, stride, channels), (3, 1, outputs)]
        )
        layers: list[nn.Module] = []
        size = inputs
        for kernel, step, filters in plan:
            layers += [*convolution(size, filters, kernel, step), nn.ReLU(inplace=True)]
            size = filters
        self.convolutions = nn.Sequential(*layers[:-1])
        self.shortcut = nn.Sequential(
            *(convolution(inputs, outputs, 1, stride) if stride != 1 or inputs != outputs else ())
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """relu(shortcut(x) + convolutions(x))."""
        return functional.relu(self.convolutions(x) + self.shortcut(x), inplace=True)


class ProbabilisticModel(nn.Module):
    """The appendix's model: images [B, 3, H, W] -> unit directions [B, d] and kappa [B]."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        size = problem.width
        layers: list[nn.Module] = [*convolution(3, size, 3, 1), nn.ReLU(inplace=True)]
        for channels in problem.plain:
            first, norm = convolution(size, channels, 3, 1)
            layers += [first, nn.MaxPool2d(2, ceil_mode=True), norm, nn.ReLU(inplace=True)]
            layers += [*convolution(channels, channels, 3, 1), nn.ReLU(inplace=True)]
            size = channels
        for stage, blocks in enumerate(problem.blocks):
            channels = problem.width * 2**stage
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                layers.append(Block(size, channels, stride, bottleneck=problem.bottleneck))
                size = channels * (4 if problem.bottleneck else 1)
        self.f = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1))
        self.g = head(size, problem.hidden, problem.dimension)
        self.kappa_head = head(size, problem.hidden, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Directions and concentrations."""
        feature = torch.flatten(self.f(x), start_dim=1)
        kappa = self.kappa_head(feature)
        return functional.normalize(self.g(feature), dim=-1), functional.softplus(kappa.squeeze(-1))


def convolution(inputs: int, outputs: int, kernel: int, stride: int) -> list[nn.Module]:
    """Convolution without bias, then batch norm."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return [layer, nn.BatchNorm2d(outputs)]


def head(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """The appendix's projection head."""
    return nn.Sequential(
        nn.Linear(inputs, hidden, bias=False),
        nn.BatchNorm1d(hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, outputs, bias=True),
    )


def loss_of(
    mean_1: torch.Tensor,
    kappa_1: torch.Tensor,
    mean_2: torch.Tensor,
    kappa_2: torch.Tensor,
    temperature: float = 0.5,
) -> torch.Tensor:
    """The appendix's loss, line by line: alignment, penalty on kappa, NT-Xent."""
    align_strength, kappa_reg_strength, epsilon = 0.05, 0.005, 1e-6
    alignment = torch.exp(
        kappa_1 * functional.cosine_similarity(mean_1, mean_2, dim=1)
        + kappa_2 * functional.cosine_similarity(mean_1, mean_2, dim=1)
    )
    align_loss = align_strength * (-torch.log(alignment + epsilon).mean())
    kappa_reg_loss = kappa_reg_strength * (torch.mean(kappa_1**2) + torch.mean(kappa_2**2))
    rows = 2 * len(mean_1)
    out = torch.cat([mean_1, mean_2], dim=0)
    sim_matrix = torch.exp(torch.mm(out, out.t().contiguous()) / temperature)
    mask = (torch.ones_like(sim_matrix) - torch.eye(rows)).bool()
    sim_matrix = sim_matrix.masked_select(mask).view(rows, -1)
    pos_sim = torch.exp(torch.sum(mean_1 * mean_2, dim=-1) / temperature)
    pos_sim = torch.cat([pos_sim, pos_sim], dim=0)
    contrastive_loss = (-torch.log(pos_sim / sim_matrix.sum(dim=-1))).mean()
    return align_loss + contrastive_loss + kappa_reg_loss


def trainer(
    variant: str, **problem: Any
) -> tuple[ProbabilisticModel, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]:
    """The model, and a function that takes one training step on two views; it gives the loss."""
    chosen, sizes = VARIANTS[variant], Problem(**problem)
    torch.manual_seed(0)
    layout = torch.channels_last if chosen.channels_last else torch.contiguous_format
    net = ProbabilisticModel(sizes).to(memory_format=layout).train()
    optimizer = torch.optim.Adam(
        net.parameters(), lr=1e-3, weight_decay=1e-6, fused=chosen.fused or None
    )

    def forward(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        if chosen.one_pass:
            mean, kappa = net(torch.cat([first, second]))
            (mean_1, mean_2), (kappa_1, kappa_2) = mean.chunk(2), kappa.chunk(2)
        else:
            mean_1, kappa_1 = net(first)
            mean_2, kappa_2 = net(second)
        return loss_of(mean_1, kappa_1, mean_2, kappa_2)

    if chosen.compiled:
        forward = torch.compile(forward)

    def step(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        first, second = (x.contiguous(memory_format=layout) for x in (first, second))
        loss = forward(first, second)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return net, step


def train_step(variant: str, **problem: Any) -> Callable[[int], None]:
    """A function that takes so many training steps on one batch of resident views."""
    chosen, sizes = VARIANTS[variant], Problem(**problem)
    _, step = trainer(variant, **problem)
    layout = torch.channels_last if chosen.channels_last else torch.contiguous_format
    shape = (sizes.batch, 3, sizes.image_size, sizes.image_size)
    pos_1, pos_2 = (torch.randn(shape).to(memory_format=layout) for _ in range(2))

    def steps(count: int) -> None:
        for _ in range(count):
            loss = step(pos_1, pos_2)
        if not torch.isfinite(loss):
            raise ValueError(f"the loss is {loss.item()}")

    return steps


def serve(connection: Connection, threads: int, variant: str, problem: dict[str, Any]) -> None:
    """Trains and embeds what a connection brings, until it is closed (`time_to_quality.py`).

    A pair of views [B, H, W, 3] is answered by the loss, images alone by their features [B, F].
    """
    torch.set_num_threads(threads)
    net, step = trainer(variant, **problem)
    while True:
        try:
            arrays = connection.recv()
        except EOFError:
            return
        images = [torch.from_numpy(array).permute(0, 3, 1, 2) for array in arrays]
        if len(images) == 2:
            connection.send(step(*images).item())
            continue
        with torch.no_grad():
            features = torch.flatten(net.eval().f(images[0]), start_dim=1)
        net.train()
        connection.send(features.numpy())
