"""Images changed a little, so that a model learns what does not matter. What is no image stays as it is."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, pad

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
