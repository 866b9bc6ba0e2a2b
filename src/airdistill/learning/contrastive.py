"""An image encoder trained without labels: SimCLR (Chen et al., ICML 2020) on the public images alone.

Two random views of one image are to have similar features, compared with the views of all other images in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import affine_grid, cross_entropy, grid_sample, max_pool2d, normalize, relu

from airdistill.learning.mixed import rise_and_fall
from airdistill.learning.samples import channels_last
from airdistill.stages import OnStage, report_stage

STAGE = "contrastive passes"
_TEMPERATURE, _LR, _DECAY = 0.2, 2e-3, 0.01
_HIDDEN, _PROJECTED = 512, 128  # of the head, which is thrown away after training
_WARM_UP = 0.02  # of the steps
_SMALLEST_CROP, _ASPECT = 0.3, 4 / 3  # share of the image's area; rows over columns, at most
_JITTER, _JITTERED, _GREY = 0.4, 0.8, 0.2  # brightness, contrast, saturation; shares of the views
_LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601
_GPU_WIDTH, _GPU_PASSES, _GPU_BATCH = 96, 520, 1024
_GPU_SAMPLES = 5_200_000  # in all passes: about three minutes of an H200 with images of 32 × 32 pixels
_CPU_WIDTH, _CPU_PASSES, _CPU_BATCH = 16, 100, 256
_CPU_MULTIPLICATIONS = 3e12  # in all passes: two to three minutes of two cores
_FEWEST_PASSES = 5
_PIXELS = 2**20  # of a batch in one channel; bounds the memory


class Encoder(nn.Module):
    """Six convolutions in three stages of 1, 2 and 4 times the width, and the maximum of each channel.

    Batch normalisation uses the stored statistics in evaluation mode, and so a sample's features depend on it alone.
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.stem = _Layer(channels, width)
        self.second = _Layer(width, 2 * width)
        self.second_residual = _Layer(2 * width, 2 * width)
        self.third = _Layer(2 * width, 4 * width)
        self.third_residual = nn.Sequential(_Layer(4 * width, 4 * width), _Layer(4 * width, 4 * width))
        self.num_features = 4 * width

    @classmethod
    def of(cls, state: Mapping[str, Tensor]) -> Encoder:
        """The trained encoder of a state, in evaluation mode."""
        width, channels = state["stem.convolution.weight"].shape[:2]
        with torch.random.fork_rng(devices=[]):
            encoder = cls(channels, width)
        encoder.load_state_dict(dict(state))
        return encoder.requires_grad_(False).eval()

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.second(self.stem(images), halve=True)
        features = features + self.second_residual(features)
        features = self.third(features, halve=True)
        features = features + self.third_residual(features)
        return features.amax(dim=(2, 3))


class _Layer(nn.Module):
    """Convolution, maximum of 2 × 2 pixels if asked for, batch normalisation and ReLU."""

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels_in, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, images: Tensor, halve: bool = False) -> Tensor:
        features = self.convolution(images)
        # Before normalisation, which then has a quarter of the pixels to read.
        return relu(self.norm(max_pool2d(features, 2) if halve else features))


@dataclass(frozen=True)
class Recipe:
    """How an encoder is trained: its width, passes over the images, and images in a batch."""

    width: int
    passes: int
    batch: int

    @classmethod
    def of(cls, shape: torch.Size, device: torch.device) -> Recipe:
        """The recipe for images of a shape `[image, channel, row, column]`; a CPU gets a smaller network."""
        count, channels, rows, columns = shape
        fits = max(_PIXELS // (rows * columns), 32)
        if device.type == "cuda":
            passes = min(_GPU_PASSES, max(_FEWEST_PASSES, _GPU_SAMPLES // count))
            return cls(_GPU_WIDTH, passes, min(_GPU_BATCH, count, fits))
        cost = 6 * count * _multiplications(channels, rows, columns, _CPU_WIDTH)  # two views, forward and backward
        passes = min(_CPU_PASSES, max(_FEWEST_PASSES, int(_CPU_MULTIPLICATIONS / cost)))
        return cls(_CPU_WIDTH, passes, min(_CPU_BATCH, count, fits))


def _multiplications(channels: int, rows: int, columns: int, width: int) -> float:
    """Multiplications of one forward pass of one image."""
    weights = (9 * width * (channels + 2 * width), 9 * 4 * width**2 * (1 + 2), 9 * 16 * width**2 * 2)
    return float(sum(each * rows * columns / 4**stage for stage, each in enumerate(weights)))


def train_encoder(images: Tensor, recipe: Recipe, seed: int, progress: OnStage = report_stage) -> Encoder:
    """Train an encoder on images `[image, channel, row, column]` with pixels from 0 to 1, on the images' device.

    The same seed gives the same encoder on a CPU with the same number of threads. A GPU adds gradients up in any order:
    two fits differ.
    """
    device = images.device
    generator = torch.Generator(device).manual_seed(seed)
    encoder, head = _initialised(images.shape[1], recipe.width, seed)
    model = nn.Sequential(encoder, head).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    batches = len(images) // recipe.batch
    step = _stepper(model, recipe.passes * batches)
    images = channels_last(images)
    with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=True), torch.enable_grad():
        for done in range(1, recipe.passes + 1):
            order = torch.randperm(len(images), generator=generator, device=device)
            for batch in order[: batches * recipe.batch].view(batches, recipe.batch):
                chosen = images[batch]
                step(torch.cat([random_view(chosen, generator), random_view(chosen, generator)]))
            if device.type == "cuda":
                torch.cuda.synchronize(device)  # or progress would run ahead of the device
            progress(STAGE, done, recipe.passes)
    encoder.requires_grad_(False)
    return encoder.eval()


def _initialised(channels: int, width: int, seed: int) -> tuple[Encoder, nn.Module]:
    """Encoder and head with weights drawn from the seed; the global generators are left as they are."""
    with torch.random.fork_rng(devices=[]):
        encoder = Encoder(channels, width)
        layers = nn.Linear(4 * width, _HIDDEN, bias=False), nn.BatchNorm1d(_HIDDEN), nn.ReLU()
        head = nn.Sequential(*layers, nn.Linear(_HIDDEN, _PROJECTED, bias=False))
    generator = torch.Generator().manual_seed(seed)
    for weight in [*encoder.parameters(), *head.parameters()]:
        if weight.ndim > 1:  # the others are those of the normalisation, which start at 1 and 0
            nn.init.kaiming_normal_(weight, nonlinearity="relu", generator=generator)
    return encoder.train(), head.train()


def _stepper(model: nn.Module, num_steps: int) -> Callable[[Tensor], None]:
    """A function that takes one step on a batch of views, those of one half being of the same images as the other."""
    cuda = next(model.parameters()).is_cuda
    optimiser = torch.optim.AdamW(model.parameters(), lr=_LR, weight_decay=_DECAY, fused=cuda)
    rates = iter((_LR * rise_and_fall(num_steps, max(1, round(_WARM_UP * num_steps)))).tolist())

    def step(views: Tensor) -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=cuda):
            projected = model(channels_last(views))
        loss = contrast(projected.float())
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        for group in optimiser.param_groups:
            group["lr"] = next(rates)
        optimiser.step()

    return step


def contrast(projected: Tensor) -> Tensor:
    """NT-Xent: the mean cross-entropy of finding each view's partner among all other views by their cosines.

    `projected` is `[view, feature]`; the partner of view i is view i + half of them.
    """
    unit = normalize(projected, dim=1)
    logits = unit @ unit.T / _TEMPERATURE
    logits = logits.masked_fill(torch.eye(len(unit), dtype=torch.bool, device=unit.device), float("-inf"))
    partners = torch.arange(len(unit), device=unit.device).roll(len(unit) // 2)
    return cross_entropy(logits, partners)


def random_view(images: Tensor, generator: torch.Generator) -> Tensor:
    """One random view of each image `[image, channel, row, column]`: a crop, and other light.

    Colour images are also mirrored, and lose some or all of their colour. Grey images often show digits or letters,
    which mirroring would turn into others.
    """

    def uniform(low: float, high: float) -> Tensor:
        drawn = torch.rand(len(images), generator=generator, device=images.device)
        return low + (high - low) * drawn

    colour = images.shape[1] == 3
    views = _cropped(images, uniform, mirror=colour)
    # Where a share of the views is left as it is, the factor is 1.
    factors = [1 + _JITTER * uniform(-1, 1) * (uniform(0, 1) < _JITTERED) for _ in range(3)]
    brightness, contrast_factor, saturation = (factor[:, None, None, None] for factor in factors)
    views = views * brightness
    centre = views.mean(dim=(1, 2, 3), keepdim=True)
    views = centre + contrast_factor * (views - centre)
    if colour:
        luma = (views * views.new_tensor(_LUMA)[:, None, None]).sum(dim=1, keepdim=True)
        kept = saturation * (uniform(0, 1) >= _GREY)[:, None, None, None]
        views = luma + kept * (views - luma)
    return views.clamp(0, 1)


def _cropped(images: Tensor, uniform: Callable[[float, float], Tensor], mirror: bool) -> Tensor:
    """A random part of each image, 30 to 100 % of its area, enlarged to the whole."""
    area = uniform(_SMALLEST_CROP, 1)
    aspect = _ASPECT ** uniform(-1, 1)
    rows, columns = (area * aspect).sqrt().clamp(max=1), (area / aspect).sqrt().clamp(max=1)
    down, right = (1 - rows) * uniform(-1, 1), (1 - columns) * uniform(-1, 1)
    if mirror:
        columns = columns * torch.where(uniform(0, 1) < 0.5, -1.0, 1.0)
    zero = torch.zeros_like(rows)
    maps = torch.stack([columns, zero, right, zero, rows, down], dim=1).view(-1, 2, 3)
    grid = affine_grid(maps, list(images.shape), align_corners=False)
    return grid_sample(images, grid, padding_mode="border", align_corners=False)
