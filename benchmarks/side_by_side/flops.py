"""Floating-point operations of the encoder, counted from the shapes of its layers.

A convolution from C to C' channels with a kernel of k x k that puts out h x w pixels takes
2 h w k^2 C C' operations, a linear layer 2 C C'. A training step takes three times the forward
pass: backwards, each layer computes a gradient for its input and one for its weights, each as much
work as forwards. (The first layer needs none for its input: 1 % of a ResNet-18 less.) Batch norm,
ReLU, optimizer and loss are not counted: they take time, and that is what the share shows.
"""

from benchmarks.side_by_side.problem import Problem


def forward(problem: Problem) -> int:
    """Operations of the encoder for one image."""
    side, size = problem.image_size, problem.width
    total = _convolution(side, 3, 3, size)
    expansion = 4 if problem.bottleneck else 1
    for channels in problem.plain:
        total += _convolution(side, 3, size, channels)
        side = -(-side // 2)
        total += _convolution(side, 3, channels, channels)
        size = channels
    for stage, blocks in enumerate(problem.blocks):
        channels = problem.width * 2**stage
        for block in range(blocks):
            before, side = side, -(-side // 2) if stage and not block else side
            outputs = channels * expansion
            if size != outputs or before != side:
                total += _convolution(side, 1, size, outputs)
            if problem.bottleneck:
                total += _convolution(before, 1, size, channels)
                total += _convolution(side, 3, channels, channels)
                total += _convolution(side, 1, channels, outputs)
            else:
                total += _convolution(side, 3, size, channels)
                total += _convolution(side, 3, channels, outputs)
            size = outputs
    heads = 2 * size * problem.hidden + problem.hidden * (problem.dimension + 1)
    return total + 2 * heads


def train_step(problem: Problem) -> int:
    """Operations of a step: both views of the batch, forwards and backwards."""
    return 3 * 2 * problem.batch * forward(problem)


def _convolution(side: int, kernel: int, inputs: int, outputs: int) -> int:
    return 2 * side**2 * kernel**2 * inputs * outputs
