"""Samples as tensors: scaling, memory layout, and augmentation of images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, pad

from airdistill.arrays import IntArray
from airdistill.scenario.networks import input_shape_of

# The customary mean and standard deviation of MNIST: public constants, not computed from any device's data.
_MNIST_MEAN, _MNIST_STD = 0.1307, 0.3081


def input_shape(samples: NDArray[np.generic]) -> tuple[int, ...]:
    """The shape of one sample as a model takes it: greyscale images get a channel axis, colour images have it first."""
    return input_shape_of(samples.shape[1:])


def as_model_input(samples: NDArray[np.generic]) -> NDArray[np.generic]:
    """The samples in the shape of `input_shape`, with the same numbers."""
    shape = input_shape(samples)
    if samples.ndim == 4 and shape != samples.shape[1:]:
        samples = np.moveaxis(samples, 3, 1)
    return samples.reshape(len(samples), *shape)


def to_tensor(samples: NDArray[np.generic], dtype: torch.dtype, device: torch.device) -> Tensor:
    """`[sample, channel, row, column]` or `[sample, feature]`; bytes are scaled and centred, floats unchanged."""
    tensor = torch.tensor(as_model_input(samples), device=device).to(dtype)
    if samples.dtype == np.uint8:
        tensor = (tensor / 255 - _MNIST_MEAN) / _MNIST_STD
    return channels_last(tensor)


def held_samples(
    samples: NDArray[np.generic], held: Sequence[IntArray], dtype: torch.dtype, device: torch.device
) -> list[tuple[Tensor, Tensor | None]]:
    """Every device's samples, without a copy for each: a tensor, and the rows of it that the device holds.

    `held` are positions in `samples`. If no two devices share a sample, each has a part of one tensor, and its rows are
    None: all. Otherwise all have the same tensor, which has each sample once.
    """
    places, sizes = np.concatenate(held), [len(each) for each in held]
    used, rows = np.unique(places, return_inverse=True)
    if len(used) == len(places):
        return [(part, None) for part in torch.split(to_tensor(samples[places], dtype, device), sizes)]
    shared = to_tensor(samples[used], dtype, device)
    return [(shared, own) for own in torch.split(torch.from_numpy(rows.reshape(-1)).to(device), sizes)]


def channels_last(tensor: Tensor) -> Tensor:
    """Images in channels-last memory format, which is the fastest for CPU convolutions; other samples unchanged.

    `.to` is used because `.contiguous(memory_format=...)` leaves the strides of single-channel images as they are.
    """
    return tensor.to(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor


# Ranges of `random_affine`: radians, relative, relative, and relative to half an image's side.
_ROTATION, _SCALE, _SHEAR, _SHIFT = 0.2, 0.1, 0.15, 0.16


def shifted(samples: Tensor, offsets: Tensor, most: int) -> Tensor:
    """Shift images `[..., channel, row, column]` by offsets `[..., 2]` with replicated edges.

    An offset of 0 shifts by `most` pixels down or right, and an offset of 2 · `most` by as many up or left.
    """
    shape = samples.shape
    images, steps = samples.reshape(-1, *shape[-3:]), offsets.reshape(-1, 2)
    padded = pad(images, (most,) * 4, mode="replicate")
    rows = steps[:, :1] + torch.arange(shape[-2], device=images.device)
    columns = steps[:, 1:] + torch.arange(shape[-1], device=images.device)
    every = torch.arange(len(images), device=images.device)[:, None, None]
    # [image, row, column, channel]: advanced indices separated by a slice move to the front.
    taken = padded[every, :, rows[:, :, None], columns[:, None, :]]
    return taken.movedim(3, 1).reshape(shape)


def random_affine(images: Tensor, generator: torch.Generator) -> Tensor:
    """Apply a small random rotation, scaling, shear and shift to each image `[image, channel, row, column]`.

    Samples that are not images are returned unchanged.
    """
    if images.ndim != 4:
        return images
    return mapped(images, affine_maps([len(images)], generator, images.dtype).to(images.device))


def affine_maps(sizes: Sequence[int], generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Random maps `[image, 2, 3]` for `mapped`, drawn in turn for batches of these sizes."""
    most = torch.tensor([_ROTATION, _SCALE, _SHEAR, _SHIFT, _SHIFT], dtype=torch.float64)[:, None]
    uniform = torch.cat([torch.rand(5, size, generator=generator, dtype=torch.float64) for size in sizes], dim=1)
    angle, growth, shear, *shift = ((2 * uniform - 1) * most).to(dtype)
    diagonal, off_diagonal = (1 + growth) * torch.cos(angle), (1 + growth) * torch.sin(angle)
    rows = [(diagonal, shear - off_diagonal, shift[0]), (off_diagonal, diagonal, shift[1])]
    return torch.stack([torch.stack(row, dim=1) for row in rows], dim=1)


def mapped(images: Tensor, maps: Tensor) -> Tensor:
    """Images `[image, channel, row, column]` seen through affine maps `[image, 2, 3]`, with replicated edges."""
    grid = affine_grid(maps, list(images.shape), align_corners=False)
    return grid_sample(images, grid, padding_mode="border", align_corners=False)
