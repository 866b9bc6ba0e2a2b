"""What the endpoints of a federation on a public set have in common: its samples, and the fitted embedding.

`prepare` fits once and writes one file, which every folder has a copy of. Endpoints embed with the tensors in that
file: fitted on another type of processor, they could differ in the last digits. The file has no labels, and nothing in
it is unpickled. Its digest is in the ledger's header, and so in what the endpoints compare when a device joins.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from airdistill.data.public import normalisation, public_as_stored
from airdistill.errors import AirDistillError
from airdistill.files import write_whole
from airdistill.learning.fits import Fits, recorded_fits, remember
from airdistill.learning.fleet import Engine
from airdistill.learning.samples import to_tensor
from airdistill.planning.feature_means import FeatureMeans
from airdistill.planning.plan import Plan
from airdistill.schemes.feature_means import public_embedding

# The second is in the format of sha256sum, with which anyone can check the first.
PUBLIC, PUBLIC_DIGEST = "public-set.npz", "public-set.sha256"


class PublicSetError(AirDistillError):
    """An endpoint has no public set, or another one than its federation."""


@dataclass(frozen=True)
class SharedPublic:
    """Public samples as stored, `[sample, ...]`, and the digest of the embedding; empty without one."""

    samples: NDArray[np.generic]
    embedding: str
    fits: Fits

    @classmethod
    def fitted(cls, plan: Plan, engine: Engine) -> SharedPublic:
        """The public samples of a plan, and everything that is fitted to them, which can take minutes."""
        samples = public_as_stored(plan.scenario)
        with recorded_fits() as fits:
            return cls(samples, _embedding_digest(plan, samples, engine), fits)

    @classmethod
    def read(cls, folder: Path, digest: str) -> SharedPublic:
        """The public set in an endpoint's folder. Raise unless its file has this digest."""
        content = _content(folder)
        _check_digest(content, digest)
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            fits: Fits = {str(key): {} for key in stored["fits"]}
            for place, tensors in enumerate(fits.values()):
                for name in _names_under(f"fit.{place}.", stored.files):
                    tensors[name] = torch.from_numpy(stored[f"fit.{place}.{name}"])
            return cls(stored["samples"], str(stored["embedding"]), fits)

    def use(self, plan: Plan, engine: Engine) -> None:
        """Embed by this set's fits from now on. Raise if this machine computes another embedding from them."""
        remember(self.fits)
        found = _embedding_digest(plan, self.samples, engine)
        if found != self.embedding:
            rule = "all endpoints must embed alike: use the same version of airdistill and of your own networks"
            raise PublicSetError(
                f"public.embedding: has digest {found[:12]} here and {self.embedding[:12]} in {PUBLIC}; {rule}"
            )

    def to_bytes(self) -> bytes:
        """The file; the same set gives the same bytes."""
        arrays: dict[str, Any] = {"samples": self.samples, "embedding": np.array(self.embedding)}
        arrays["fits"] = np.array(list(self.fits), dtype=np.str_)
        for place, tensors in enumerate(self.fits.values()):
            arrays |= {f"fit.{place}.{name}": tensor.numpy() for name, tensor in tensors.items()}
        content = io.BytesIO()
        np.savez(content, **arrays)
        return content.getvalue()


def write_public(folders: list[Path], shared: SharedPublic) -> None:
    """Write the file and its digest into every folder."""
    content = shared.to_bytes()
    digest = hashlib.sha256(content).hexdigest()
    for folder in folders:
        write_whole(folder / PUBLIC, content)
        (folder / PUBLIC_DIGEST).write_text(f"{digest}  {PUBLIC}\n", encoding="utf-8")


def checked_digest(folder: Path) -> str:
    """The digest of the federation's public set, which the file in the folder must have."""
    try:
        digest = (folder / PUBLIC_DIGEST).read_text(encoding="utf-8").split()[0]
    except (FileNotFoundError, IndexError):
        raise PublicSetError(f"{PUBLIC_DIGEST}: is missing or empty; {_WAY_OUT}") from None
    _check_digest(_content(folder), digest)
    return digest


_WAY_OUT = f"copy {PUBLIC} and {PUBLIC_DIGEST} from the folders that airdistill flower prepare made"


def _content(folder: Path) -> bytes:
    try:
        return (folder / PUBLIC).read_bytes()
    except FileNotFoundError:
        raise PublicSetError(f"{PUBLIC}: is missing; {_WAY_OUT}") from None


def _check_digest(content: bytes, digest: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        raise PublicSetError(f"{PUBLIC}: has digest {found[:12]} and this federation's has {digest[:12]}; {_WAY_OUT}")


def _embedding_digest(plan: Plan, samples: NDArray[np.generic], engine: Engine) -> str:
    if not isinstance(plan.uplink.payload, FeatureMeans):
        return ""
    normalised = normalisation(plan.scenario, samples)(samples)
    return public_embedding(plan, to_tensor(normalised, engine.dtype, engine.device), engine).digest


def _names_under(prefix: str, names: list[str]) -> Iterator[str]:
    return (name.removeprefix(prefix) for name in names if name.startswith(prefix))
