"""Networks of the form that the fused kernels compute."""

from torch import nn

CLASSES = 4


def network(channels_in, height, width, blocks, dense, bias=True, pool_first=True):
    """Blocks as (channels, kernel height, kernel width), hidden layers by their size."""
    layers, rows, columns = [], height, width
    for channels, kernel_height, kernel_width in blocks:
        layers.append(nn.Conv2d(channels_in, channels, (kernel_height, kernel_width), bias=bias))
        layers += [nn.MaxPool2d(2), nn.ReLU()] if pool_first else [nn.ReLU(), nn.MaxPool2d(2)]
        channels_in, rows, columns = channels, (rows - kernel_height + 1) // 2, (columns - kernel_width + 1) // 2
    layers.append(nn.Flatten())
    size = channels_in * rows * columns
    for outputs in dense:
        layers += [nn.Linear(size, outputs, bias=bias), nn.ReLU()]
        size = outputs
    return nn.Sequential(*layers, nn.Linear(size, CLASSES, bias=bias))
