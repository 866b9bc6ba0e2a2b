"""Samples as tensors: scaled, and laid out for fast convolution.

Images changed a little, so that a model learns what does not matter. What is no image stays as it is.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, pad

# Of the MNIST training images, as everybody uses them; public constants, not computed from a device's data.
_MNIST_MEAN, _MNIST_STD = 0.1307, 0.3081


def input_shape(samples: NDArray[np.generic]) -> tuple[int, ...]:
    """The shape of one sample as a model sees it: grey images get a channel axis, coloured ones put it first."""
    if samples.ndim == 3:
        return (1, *samples.shape[1:])
    if samples.ndim == 4 and samples.shape[-1] in (1, 3, 4) and samples.shape[1] not in (1, 3, 4):
        return (samples.shape[3], samples.shape[1], samples.shape[2])
    return samples.shape[1:]


def to_tensor(samples: NDArray[np.generic], dtype: torch.dtype, device: torch.device) -> Tensor:
    """`[sample, channel, row, column]` or `[sample, feature]`; bytes are scaled and centred, floats are kept."""
    shape = input_shape(samples)
    if samples.ndim == 4 and shape != samples.shape[1:]:
        samples = np.moveaxis(samples, 3, 1)
    tensor = torch.tensor(samples, device=device).reshape(len(samples), *shape).to(dtype)
    if samples.dtype == np.uint8:
        tensor = (tensor / 255 - _MNIST_MEAN) / _MNIST_STD
    return channels_last(tensor)


def channels_last(tensor: Tensor) -> Tensor:
    """Images with the channel innermost, which CPU convolutions are fastest on.

    With one channel `.contiguous(memory_format=...)` believes that nothing needs doing; `.to` sets the strides.
    """
    return tensor.to(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor


_ROTATION, _SCALE, _SHEAR, _MOVE = 0.2, 0.1, 0.15, 0.16  # radians, share, share, share of half an image's side


def moved(samples: Tensor, offsets: Tensor, most: int) -> Tensor:
    """Images `[..., channel, row, column]`, each moved by its offset `[..., 2]` from 0 to twice `most`, which is from
    `most` down and right to `most` up and left. What comes in is as the edge was."""
    shape = samples.shape
    images, steps = samples.reshape(-1, *shape[-3:]), offsets.reshape(-1, 2)
    padded = pad(images, (most,) * 4, mode="replicate")
    rows = steps[:, :1] + torch.arange(shape[-2], device=images.device)
    columns = steps[:, 1:] + torch.arange(shape[-1], device=images.device)
    every = torch.arange(len(images), device=images.device)[:, None, None]
    # [image, row, column, channel], for an index beside a slice comes first.
    taken = padded[every, :, rows[:, :, None], columns[:, None, :]]
    return taken.movedim(3, 1).reshape(shape)


def bent(images: Tensor, generator: torch.Generator) -> Tensor:
    """Images `[image, channel, row, column]`, each turned, stretched, sheared and moved a little at random."""
    if images.ndim != 4:
        return images

    def drawn(most: float) -> Tensor:
        uniform = torch.rand(len(images), generator=generator, dtype=torch.float64)
        return ((2 * uniform - 1) * most).to(images)

    angle, scale, shear = drawn(_ROTATION), 1 + drawn(_SCALE), drawn(_SHEAR)
    along, across = scale * torch.cos(angle), scale * torch.sin(angle)
    maps = torch.stack(
        [
            torch.stack([along, shear - across, drawn(_MOVE)], dim=1),
            torch.stack([across, along, drawn(_MOVE)], dim=1),
        ],
        dim=1,
    )
    grid = affine_grid(maps, list(images.shape), align_corners=False)
    return grid_sample(images, grid, padding_mode="border", align_corners=False)
