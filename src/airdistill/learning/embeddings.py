"""Public embeddings: features of samples that are fitted before any private sample is seen (theory section 10).

1. Samples are scaled by the lowest and highest public number (`base_features.Scale`).
2. Base features: of patches, of a network trained without labels, of a user's network, or the samples themselves.
3. They are centred, projected on their leading principal directions and whitened, all by the public samples: these
   then have mean zero and covariance I, with sums divided by the number of samples n, not n − 1.

Nothing here takes labels. What was fitted is kept (`fits`), for any number of features.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from airdistill.errors import InputError
from airdistill.files import place_of
from airdistill.learning.base_features import SIZE, Joined, PatchFeatures, RandomFeatures, Scale
from airdistill.learning.contrastive import Encoder, Recipe, train_encoder
from airdistill.learning.fits import digest_of, remembered
from airdistill.learning.fleet import CPU, Engine
from airdistill.learning.frozen_network import CHECKED, FIELD, check_network, load_network
from airdistill.learning.samples import channels_last
from airdistill.stages import OnStage, report_stage

_VERSION = 1  # of all that is kept: raised when the same samples would give other features
_WIDTH_FIELD = "public.features"
SAMPLES_OF_FEATURE = 4  # public samples for each feature, at least
LEAST_VARIANCE = 1e-6  # of a direction, relative to the largest
_RANKS = (256, 1024)  # directions found at once, so that a changed number of features needs no new fit
_NUMBERS_AT_ONCE = {"cpu": 2**18, "cuda": 2**19}  # of the samples in one pass
_SMALLEST_IMAGE = {"patches": SIZE + 2, "contrastive": 8}  # rows and columns
_BUILT_IN = ("raw", "random", "patches", "contrastive")
_DENSE = 1200  # rows of a matrix up to which all its eigenvectors are computed
_ITERATIONS = 10  # of subspace iteration
_ROWS_AT_ONCE, _COLUMNS_AT_ONCE = 2048, 4096  # in double precision


@dataclass(frozen=True, eq=False)
class Embedding:
    """A fitted embedding of samples.

    `digest` covers all that defines it. `num_bytes` are those of its parameters in single precision: what sending it to
    the devices once costs. `spectrum` `[direction]` are the shares that the leading directions have in the variance of
    the base features, of more directions than are used.
    """

    name: str
    width: int
    digest: str
    num_bytes: int
    spectrum: Tensor
    _scale: Scale = field(repr=False)
    _base: Joined = field(repr=False)
    _mean: Tensor = field(repr=False)
    _projection: Tensor = field(repr=False)
    _device: torch.device = field(repr=False)

    @property
    def backbone(self) -> nn.Module | None:
        """The network whose output the features are; None if there is no network, or more than that."""
        part = self._base.parts[0]
        built_in = isinstance(part, (PatchFeatures, RandomFeatures, nn.Flatten))
        return None if built_in or len(self._base.parts) > 1 else part

    @torch.no_grad()
    def features(self, samples: Tensor, chunk: int = 0) -> Tensor:
        """Features `[sample, feature]` on the CPU, each row of its own sample alone.

        Samples are stored as the public ones were: both as bytes, or both as the same kind of floats. `chunk` samples
        are taken at once, by default as many as suit the device.
        """
        mean, projection = self._mean.double(), self._projection.double()
        rows = [
            # In double precision: whitening enlarges what rounding leaves in directions of little variance.
            ((base.double() - mean) @ projection).float().cpu()
            for base in _base_features(self._base, self._scale, samples, self._device, chunk)
        ]
        return torch.cat(rows) if rows else torch.zeros(0, self.width)


def fit_embedding(
    name: str,
    samples: Tensor,
    width: int,
    *,
    engine: Engine | torch.device | str | None = None,
    seed: int,
    progress: OnStage | None = None,
) -> Embedding:
    """Fit the embedding `name` with `width` features to public samples.

    Names: `raw`, `random`, `patches`, `contrastive`, a TorchScript file, `module:function`, `module:function@weights`
    (safetensors), and sums of them such as `patches+contrastive`, whose features stand side by side. Samples are
    `[sample, channel, row, column]`, `[sample, row, column]` or `[sample, feature]`, as bytes or floats.

    The public samples may have to be scaled, passed through a network and decomposed, which takes minutes at most. A
    GPU trains a larger network than a CPU.
    """
    device = engine.device if isinstance(engine, Engine) else torch.device(engine or CPU)
    report = report_stage if progress is None else progress
    _check_width(width, len(samples))
    public = _Public(samples, Scale.of(samples).to(device), digest_of({"samples": samples}), seed, device, report)
    names = _parts_of(name)
    parts = [_fitted_part(part, public) for part in names]
    fitted = _principal(names, parts, public, width)
    _check_variances(name, width, fitted["variances"], sum_of_widths=len(fitted["mean"]))
    base = Joined(parts, fitted["weights"]).to(device).eval()
    projection = (fitted["directions"][:width].T / fitted["variances"][:width].sqrt()).float().to(device)
    return _assembled(name, public, base, fitted["mean"].float().to(device), projection, fitted["variances"])


def own_networks_digest(name: str, samples: Tensor, seed: int) -> str:
    """The digest of the user's own networks in the embedding `name`, of the bytes of files and the weights that code
    makes; empty without any. It contains no computed number."""
    found, shape = hashlib.sha256(), torch.Size((len(samples), *Scale.of(samples)(samples[:1]).shape[1:]))
    own = [part for part in _parts_of(name) if part not in _BUILT_IN]
    for part in own:
        if place_of(part).is_file():
            found.update(hashlib.sha256(place_of(part).read_bytes()).digest())
        else:
            found.update(digest_of(load_network(part, shape, seed).state_dict()).encode())
    return found.hexdigest() if own else ""


@dataclass(frozen=True)
class _Public:
    """The public samples, and what every step of a fit needs to know."""

    samples: Tensor
    scale: Scale
    digest: str
    seed: int
    device: torch.device
    report: OnStage

    @property
    def shape(self) -> torch.Size:
        """The shape of all samples, as base features take them."""
        return torch.Size((len(self.samples), *self.scale(self.samples[:1].to(self.device)).shape[1:]))

    def key(self, purpose: str, name: str) -> str:
        """What a fit depends on; of all embeddings, only the contrastive one depends on the device."""
        recipe = Recipe.of(self.shape, self.device) if "contrastive" in name.split("+") else None
        return f"{_VERSION} {purpose} {name} {self.digest} {self.seed} {recipe}"


def _assembled(
    name: str, public: _Public, base: Joined, mean: Tensor, projection: Tensor, spectrum: Tensor
) -> Embedding:
    fitted = {f"scale.{key}": value for key, value in public.scale.state_dict().items()}
    fitted |= {**base.state_dict(), "mean": mean, "projection": projection}
    num_bytes = 4 * sum(value.numel() for value in fitted.values() if value.is_floating_point())
    width = projection.shape[1]
    digest = digest_of(fitted, name, str(width))
    return Embedding(name, width, digest, num_bytes, spectrum, public.scale, base, mean, projection, public.device)


def _check_width(width: int, count: int) -> None:
    if width < 1:
        raise InputError(_WIDTH_FIELD, width, "must be 1 or more")
    most = count // SAMPLES_OF_FEATURE
    if width > most:
        rule = (
            f"{count} public samples can whiten at most {most} features, a quarter of their number; "
            f"ask for at most {most}, or for {SAMPLES_OF_FEATURE * width} public samples (public.samples)"
        )
        raise InputError(_WIDTH_FIELD, width, rule)


def _check_variances(name: str, width: int, variances: Tensor, sum_of_widths: int) -> None:
    """Raise if the public samples hardly vary in some direction that is asked for."""
    if width > sum_of_widths:
        rule = f"has {sum_of_widths} outputs, fewer than {_WIDTH_FIELD} = {width}; lower that, or choose a wider one"
        raise InputError(FIELD, name, rule)
    rank = int((variances > LEAST_VARIANCE * variances[0]).sum()) if variances[0] > 0 else 0
    if width > rank:
        if rank == 0:
            rule = "gives all public samples the same features; choose another embedding, or other public samples"
            raise InputError(FIELD, name, rule)
        rule = (
            f"the public samples vary in {rank} directions of {name} only (variance above a millionth of the largest); "
            f"ask for at most {rank}, or choose another embedding"
        )
        raise InputError(_WIDTH_FIELD, width, rule)


def _parts_of(name: str) -> list[str]:
    """The names of the parts of a sum, each of which could be an embedding."""
    parts = [name] if place_of(name).is_file() else name.split("+")
    for part in parts:
        if part not in _BUILT_IN and ":" not in part and not Path(part).suffix:
            rule = (
                f"must be one of {', '.join(_BUILT_IN)}, a TorchScript file (net.pt), package.module:function, "
                "package.module:function@weights.safetensors, or a sum such as patches+contrastive"
            )
            raise InputError(FIELD, name, rule)
    return parts


def _fitted_part(name: str, public: _Public) -> nn.Module:
    """The module of one part's base features, on the device."""
    shape, smallest = public.shape, _SMALLEST_IMAGE.get(name)
    if smallest is not None and (len(shape) != 4 or min(shape[2:]) < smallest):
        rule = f"needs images of at least {smallest} × {smallest} pixels, not samples of shape {tuple(shape[1:])}"
        raise InputError(FIELD, name, f"{rule}; use raw, random, or a network of your own")
    if name not in _BUILT_IN:
        network = load_network(name, shape, public.seed).to(public.device)
        check_network(name, network, public.scale(public.samples[:CHECKED].to(public.device)))
        return network
    if name == "raw":
        return nn.Flatten()
    state = remembered(public.key("base", name), lambda: _fit_part(name, public).state_dict())
    part = _restored(name, state)
    if name == "contrastive":
        # The statistics of a batch in place of the stored ones would let one record change the features of others.
        check_network(name, part, public.scale(public.samples[:CHECKED].to(public.device)).cpu())
    return part.to(public.device)


def _fit_part(name: str, public: _Public) -> nn.Module:
    scaled = public.scale(public.samples.to(public.device))
    if name == "contrastive":
        return train_encoder(scaled, Recipe.of(scaled.shape, public.device), public.seed, public.report)
    kind = PatchFeatures if name == "patches" else RandomFeatures
    return kind.fit(scaled, public.seed, public.report)


def _restored(name: str, state: Mapping[str, Tensor]) -> nn.Module:
    if name == "contrastive":
        return Encoder.of(state)
    return PatchFeatures(**state) if name == "patches" else RandomFeatures(**state)


def _base_features(
    base: nn.Module, scale: Scale, samples: Tensor, device: torch.device, chunk: int, report: OnStage | None = None
) -> Iterator[Tensor]:
    """Base features `[sample, feature]` of one chunk of samples after the other."""
    numbers = max(1, math.prod(samples.shape[1:]))
    chunk = chunk or min(4096, max(16, _NUMBERS_AT_ONCE[device.type] // numbers))
    parts = torch.split(samples, chunk) if len(samples) else ()
    # TensorFloat-32 would make a GPU's features differ from a CPU's in the third digit.
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        for done, part in enumerate(parts, start=1):
            yield base(channels_last(scale(part.to(device)))).flatten(1).float()
            if report is not None:
                report("public features", done, len(parts))


def _principal(names: list[str], parts: list[nn.Module], public: _Public, width: int) -> dict[str, Tensor]:
    """The parts' weights, and mean, leading directions and their variances of the joined features."""
    rank = next((rank for rank in _RANKS if width <= rank), len(public.samples) // SAMPLES_OF_FEATURE)
    state = "" if set(names) <= set(_BUILT_IN) else digest_of(nn.ModuleList(parts).state_dict())
    key = f"{public.key(f'principal {rank}', '+'.join(names))} {state}"
    # A user's code is no part of the key: what it gave is not kept on the disk.
    return remembered(key, lambda: _fit_principal(names, parts, public, rank), on_disk=not state)


@torch.no_grad()
def _fit_principal(names: list[str], parts: list[nn.Module], public: _Public, rank: int) -> dict[str, Tensor]:
    blocks, weights = [], []
    for name, part in zip(names, parts, strict=True):
        features = torch.cat(list(_base_features(part, public.scale, public.samples, public.device, 0, public.report)))
        if not torch.isfinite(features).all():
            raise InputError(FIELD, name, "must give finite numbers on all public samples; scale its inputs or outputs")
        variance = sum(
            block.double().var(dim=0, correction=0).sum() for block in torch.split(features, _COLUMNS_AT_ONCE, 1)
        )
        # Every part has the total variance 1: none decides alone which directions are the leading ones.
        weights.append(1 / math.sqrt(float(variance)) if variance > 0 else 1.0)
        blocks.append(features.mul_(weights[-1]))
    mean, directions, variances = principal_directions(torch.cat(blocks, dim=1), rank)
    return {"weights": torch.tensor(weights), "mean": mean, "directions": directions, "variances": variances}


def principal_directions(features: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """Mean `[feature]`, and up to `rank` leading directions `[direction, feature]` with their variances.

    The variance is the mean square. Within the space of the directions found, covariances are exactly zero; in large
    problems that space is the leading one up to the error of subspace iteration.
    """
    count, width = features.shape
    mean = torch.cat([block.double().mean(dim=0) for block in torch.split(features, _COLUMNS_AT_ONCE, dim=1)])
    # Large products in single precision take half the time, and decide only which space is spanned.
    kind = torch.float32 if min(count, width) > _DENSE else torch.float64
    if width <= count:
        rows = (row.to(kind) for row in _centred(features, mean, dim=0))
        spanning = leading(_summed(row.T @ row for row in rows) / count, rank).double()
    else:
        columns = (column.to(kind) for column in _centred(features, mean, dim=1))
        inner = leading(_summed(column @ column.T for column in columns) / count, rank).double()
        spanning = torch.cat([column.T @ inner for column in _centred(features, mean, dim=1)])
    spanning = torch.linalg.qr(spanning).Q
    projected = torch.cat([row @ spanning for row in _centred(features, mean, dim=0)])
    variances, rotation = (each.flip(-1) for each in torch.linalg.eigh(projected.T @ projected / count))
    directions = (spanning @ rotation).T
    # A direction's sign is arbitrary: its largest entry is positive.
    largest = directions.gather(1, directions.abs().argmax(dim=1, keepdim=True))
    return mean, directions * torch.where(largest < 0, -1.0, 1.0), variances.clamp(min=0)


def _summed(matrices: Iterator[Tensor]) -> Tensor:
    total = next(matrices)
    for matrix in matrices:
        total += matrix
    return total


def _centred(features: Tensor, mean: Tensor, dim: int) -> Iterator[Tensor]:
    """Blocks of rows (0) or columns (1) of the centred features, in double precision."""
    if dim == 0:
        yield from (block.double() - mean for block in torch.split(features, _ROWS_AT_ONCE))
    else:
        pairs = zip(torch.split(features, _COLUMNS_AT_ONCE, 1), torch.split(mean, _COLUMNS_AT_ONCE), strict=True)
        yield from (block.double() - part for block, part in pairs)


def leading(matrix: Tensor, rank: int) -> Tensor:
    """Orthonormal columns that span the leading eigenvectors of a symmetric matrix, `[row, rank]`."""
    size = len(matrix)
    if size <= _DENSE:
        found: Tensor = torch.linalg.eigh(matrix).eigenvectors.flip(1)[:, :rank]
        return found
    block = min(size, rank + max(32, rank // 4))
    start = torch.randn(size, block, generator=torch.Generator().manual_seed(0), dtype=matrix.dtype)
    basis = torch.linalg.qr(start.to(matrix.device)).Q
    for _ in range(_ITERATIONS):
        basis = torch.linalg.qr(matrix @ basis).Q
    rotated: Tensor = basis @ torch.linalg.eigh(basis.T @ matrix @ basis).eigenvectors.flip(1)[:, :rank]
    return rotated
