"""Features of samples that are fitted without labels: patches of images, random features, and the samples themselves.

Each is a module from scaled samples to `[sample, feature]`, whose buffers are all that it was fitted to. A sample's
features depend on that sample alone.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, avg_pool2d, conv2d, normalize, relu

from airdistill.stages import OnStage

SIZE = 6  # pixels along a patch
_LEVELS = 2**16 - 1
_CENTRES, _SAMPLES_OF_CENTRE = 800, 3  # at most, half as many of grey images; public samples for each, at least
_FEWEST_CENTRES = 50
_PATCHES_OF_CENTRE, _PASSES = 150, 10  # of k-means
_IMAGES_AT_ONCE = 8  # on a CPU, whose caches should hold their responses
_NORM_OFFSET = 0.5  # added to a patch's norm: faint patches stay faint
_RIDGE = 0.01  # added to the eigenvalues of the patches' covariance, relative to their mean
_THRESHOLD = 0.25  # of a response, relative to its standard deviation over the patches
_BLOCK = 20_000  # patches compared with all centres at once
_RANDOM = 2048


class Scale(nn.Module):
    """Samples with the lowest public number at 0 and the highest at 1, in each channel of images.

    Images are rounded to 16 bits: one image, stored in bytes or in normalised floats, becomes exactly the same numbers.
    """

    low: Tensor
    span: Tensor

    def __init__(self, low: Tensor, span: Tensor) -> None:
        super().__init__()
        self.register_buffer("low", low)
        self.register_buffer("span", span)

    @classmethod
    def of(cls, samples: Tensor) -> Scale:
        """The scale of public samples `[sample, channel, row, column]`, `[sample, row, column]` or `[sample, …]`."""
        samples = _with_channel(samples)
        axes = (0, 2, 3) if samples.ndim == 4 else tuple(range(samples.ndim))
        low, high = (function(samples, dim=axes, keepdim=True)[0].float() for function in (torch.amin, torch.amax))
        span = high - low
        return cls(low, torch.where(span > 0, span, 1.0))

    def forward(self, samples: Tensor) -> Tensor:
        scaled = (_with_channel(samples).float() - self.low) / self.span
        return torch.round(scaled * _LEVELS) / _LEVELS if scaled.ndim == 4 else scaled


def _with_channel(samples: Tensor) -> Tensor:
    return samples[:, None] if samples.ndim == 3 else samples


class PatchFeatures(nn.Module):
    """How strongly patches respond to k-means centres, averaged in regions of an image (Coates and Ng, 2012).

    A patch is centred, divided by its norm + 0.5 and whitened (ZCA), which is linear and so is part of the `filters`
    `[centre, channel, row, column]` and the `offset` `[centre]`. A response beyond ±`threshold` counts, the positive
    and the negative ones apart.
    """

    filters: Tensor
    offset: Tensor
    threshold: Tensor

    def __init__(self, filters: Tensor, offset: Tensor, threshold: Tensor) -> None:
        super().__init__()
        self.register_buffer("filters", filters)
        self.register_buffer("offset", offset)
        self.register_buffer("threshold", threshold)

    @classmethod
    def fit(cls, images: Tensor, seed: int, progress: OnStage) -> PatchFeatures:
        """Fit to scaled images `[image, channel, row, column]`."""
        generator = torch.Generator().manual_seed(seed)
        most = _CENTRES if images.shape[1] == 3 else _CENTRES // 2
        num_centres = min(most, max(_FEWEST_CENTRES, len(images) // _SAMPLES_OF_CENTRE))
        patches = _normalised(_drawn_patches(images, _PATCHES_OF_CENTRE * num_centres, generator))
        mean, whitening = _zca(patches)
        whitened = (patches - mean) @ whitening
        centres = spherical_k_means(whitened, num_centres, generator, progress)
        kernels = centres @ whitening.T
        offset = kernels @ mean
        # A patch is centred before: constants that are added to a filter are not seen.
        kernels = kernels - kernels.mean(dim=1, keepdim=True)
        deviation = (whitened[:_BLOCK] @ centres.T).std()
        return cls(kernels.view(-1, images.shape[1], SIZE, SIZE), offset, _THRESHOLD * deviation)

    def forward(self, images: Tensor) -> Tensor:
        blocks = torch.split(images, _IMAGES_AT_ONCE if images.device.type == "cpu" else len(images))
        return torch.cat([self._features(block) for block in blocks])

    def _features(self, images: Tensor) -> Tensor:
        # Channels last: convolution and pooling take a third of the time on a CPU.
        responses = conv2d(images, self.filters.to(memory_format=torch.channels_last))
        responses.div_(_norms(images) + _NORM_OFFSET).sub_(self.offset[:, None, None])
        positive = (responses - self.threshold).relu_()
        negative = responses.add_(self.threshold).neg_().relu_()
        pooled = [adaptive_avg_pool2d(side, _regions(images.shape)) for side in (positive, negative)]
        # The square root keeps a few strong responses from deciding.
        return torch.cat(pooled, dim=1).sqrt().flatten(1)


def _regions(shape: torch.Size) -> tuple[int, int]:
    """Regions along rows and along columns: 2 × 2 of images in colour, 4 × 4 of others."""
    most = 2 if shape[1] == 3 else 4
    rows, columns = (min(most, side - SIZE + 1) for side in shape[2:])
    return rows, columns


def _norms(images: Tensor) -> Tensor:
    """The norm of every centred patch, `[image, 1, row, column]`; in double precision, since squares cancel."""
    exact, count = images.double(), images.shape[1] * SIZE**2
    sums, squares = (
        avg_pool2d(each.sum(dim=1, keepdim=True), SIZE, stride=1) * SIZE**2 for each in (exact, exact.square())
    )
    return (squares - sums.square() / count).clamp(min=0).sqrt().float()


def _drawn_patches(images: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Random patches `[patch, pixel]`."""
    patches = images.unfold(2, SIZE, 1).unfold(3, SIZE, 1)  # [image, channel, row, column, ., .]
    sizes = len(images), *patches.shape[2:4]
    image, row, column = (torch.randint(size, (count,), generator=generator) for size in sizes)
    return patches[image.to(images.device), :, row.to(images.device), column.to(images.device)].flatten(1)


def _normalised(patches: Tensor) -> Tensor:
    centred = patches - patches.mean(dim=1, keepdim=True)
    norms: Tensor = torch.linalg.vector_norm(centred, dim=1, keepdim=True)
    return centred / (norms + _NORM_OFFSET)


def _zca(patches: Tensor) -> tuple[Tensor, Tensor]:
    """Mean `[pixel]` and symmetric whitening matrix `[pixel, pixel]` of patches."""
    mean = patches.double().mean(dim=0)
    centred = patches.double() - mean
    values, vectors = torch.linalg.eigh(centred.T @ centred / len(patches))
    ridge = _RIDGE * values.mean().clamp(min=1e-12)
    whitening = vectors / (values.clamp(min=0) + ridge).sqrt() @ vectors.T
    return mean.float(), whitening.float()


def spherical_k_means(points: Tensor, num_centres: int, generator: torch.Generator, progress: OnStage) -> Tensor:
    """Unit vectors `[centre, ...]` along which points `[point, ...]` are longest; a centre without any is redrawn."""
    centres: Tensor = normalize(points[_choice(points, num_centres, generator)], dim=1)
    for done in range(1, _PASSES + 1):
        sums = torch.zeros_like(centres)
        for block in torch.split(points, _BLOCK):
            length, nearest = (block @ centres.T).max(dim=1)
            members = torch.zeros(num_centres, len(block), dtype=block.dtype, device=block.device)
            sums += members.scatter_(0, nearest[None], length[None]) @ block
        norms = sums.norm(dim=1, keepdim=True)
        others = points[_choice(points, num_centres, generator)]
        centres = normalize(torch.where(norms > 1e-6, sums, others), dim=1)
        progress("patch dictionary", done, _PASSES)
    return centres


def _choice(points: Tensor, count: int, generator: torch.Generator) -> Tensor:
    return torch.randperm(len(points), generator=generator)[:count].to(points.device)


class RandomFeatures(nn.Module):
    """ReLU of random projections of the flattened samples, centred and scaled by the public ones."""

    weights: Tensor
    offset: Tensor

    def __init__(self, weights: Tensor, offset: Tensor) -> None:
        super().__init__()
        self.register_buffer("weights", weights)
        self.register_buffer("offset", offset)

    @classmethod
    def fit(cls, samples: Tensor, seed: int, progress: OnStage) -> RandomFeatures:  # noqa: ARG003  (as all fits)
        """Draw the projections; the samples only scale them."""
        flat = samples.flatten(1).double()
        mean = flat.mean(dim=0)
        generator = torch.Generator().manual_seed(seed)
        weights = torch.randn(_RANDOM, flat.shape[1], generator=generator, dtype=torch.float64).to(flat.device)
        shifts = torch.randn(_RANDOM, generator=generator, dtype=torch.float64).to(flat.device)
        deviation = (flat - mean).square().sum(dim=1).mean().sqrt().clamp(min=1e-12)
        weights = weights / deviation
        return cls(weights.float(), (shifts / math.sqrt(2) - weights @ mean).float())

    def forward(self, samples: Tensor) -> Tensor:
        return relu(samples.flatten(1) @ self.weights.T + self.offset)


class Joined(nn.Module):
    """The features of several modules side by side, each multiplied by its `weights` `[part]`."""

    weights: Tensor

    def __init__(self, parts: list[nn.Module], weights: Tensor) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.register_buffer("weights", weights)

    def forward(self, samples: Tensor) -> Tensor:
        pairs = zip(self.parts, self.weights, strict=True)
        return torch.cat([weight * part(samples).flatten(1) for part, weight in pairs], dim=1)
