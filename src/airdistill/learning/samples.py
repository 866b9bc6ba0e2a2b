"""Samples as tensors: scaled, and laid out for fast convolution."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
