"""Small residual networks for images, with group normalisation: no statistics over samples or devices.

He et al. (CVPR 2016), section 4.2: 6n + 2 layers in three stages of n blocks, with 1, 2 and 4 times the width. Group
normalisation (Wu and He, ECCV 2018) replaces batch normalisation, which would mix the samples of a batch: gradients
clipped per sample would not exist, and the devices' statistics would have to be sent too.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import relu

from airdistill.scenario.networks import CHANNELS_IN_GROUP


class Block(nn.Module):
    """Two convolutions and a shortcut, which is a convolution of size 1 if the shape changes."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.first_norm = _norm(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = _norm(channels)
        same = stride == 1 and channels_in == channels
        self.shortcut = nn.Identity() if same else nn.Conv2d(channels_in, channels, 1, stride, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        features = relu(self.first_norm(self.first(images)))
        return relu(self.second_norm(self.second(features)) + self.shortcut(images))


class ResNet(nn.Module):
    """A residual network of three stages; its stages halve rows and columns, and so images may be of any size."""

    def __init__(self, blocks: int, width: int, channels: int, num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(channels, width, 3, padding=1, bias=False), _norm(width), nn.ReLU())
        widths = [width, *(width * factor for factor in (1, 2, 4) for _ in range(blocks))]
        strides = [2 if place in (blocks, 2 * blocks) else 1 for place in range(3 * blocks)]
        pairs = zip(widths[:-1], widths[1:], strides, strict=True)
        self.blocks = nn.Sequential(*(Block(before, after, stride) for before, after, stride in pairs))
        self.out = nn.Linear(4 * width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.out(self.blocks(self.stem(images)).mean(dim=(2, 3)))
        return logits


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(channels // CHANNELS_IN_GROUP, channels)
