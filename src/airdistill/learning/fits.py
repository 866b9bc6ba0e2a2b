"""What was fitted to public samples: kept in the process and in the cache folder, or given by whoever fitted it first.

The folder is `AIRDISTILL_CACHE`; "off": nothing is written. Another type of processor could fit the same samples
differently in the last digits. Endpoints of a federation therefore take the fits that were made once for all of them.
"""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from airdistill.data.datasets import cache_folder, caching_is_off
from airdistill.files import write_whole

logger = logging.getLogger(__name__)
Fits = dict[str, dict[str, Tensor]]  # tensors by name, by the key of their fit

_KEPT = 8  # fits in the memory of the process
_records: list[Fits] = []
_memory: OrderedDict[str, dict[str, Tensor]] = OrderedDict()


def remembered(key: str, fit: Callable[[], Mapping[str, Tensor]], on_disk: bool = True) -> dict[str, Tensor]:
    """The tensors that `fit` gives, from this process or from the cache folder if they are there under this key."""
    entry = cache_folder() / f"embedding-{hashlib.sha256(key.encode()).hexdigest()}.safetensors"
    on_disk = on_disk and not caching_is_off()
    found = _memory.pop(key, None) or (_read(entry) if on_disk else None)
    if found is None:
        found = {name: value.detach().cpu().contiguous() for name, value in fit().items()}
        if on_disk:
            _write(entry, found)
    _memory[key] = found
    for record in _records:
        record[key] = found
    while len(_memory) > _KEPT:
        _memory.popitem(last=False)
    return found


@contextmanager
def recorded_fits() -> Iterator[Fits]:
    """Everything that is fitted or remembered within the block: what another process needs to compute the same."""
    record: Fits = {}
    _records.append(record)
    try:
        yield record
    finally:
        _records.remove(record)


def remember(fits: Fits) -> None:
    """Use these fits from now on, and make none under their keys."""
    _memory.update(fits)


def _read(entry: Path) -> dict[str, Tensor] | None:
    """What a file has, if its tensors match the digest that is among them."""
    try:
        tensors = load(entry.read_bytes())
        digest = bytes(tensors.pop("digest").tolist()).hex()
        damaged = digest != digest_of(tensors)
    except OSError:
        return None
    except (SafetensorError, KeyError, ValueError):
        damaged = True
    if damaged:
        logger.warning("%s: damaged, fitted again", entry)
        return None
    return tensors


def _write(entry: Path, tensors: dict[str, Tensor]) -> None:
    digest = torch.tensor(list(bytes.fromhex(digest_of(tensors))), dtype=torch.uint8)
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        write_whole(entry, save({**tensors, "digest": digest}))
    except OSError as error:
        logger.warning("%s: not kept: %s", entry, error)


def digest_of(tensors: Mapping[str, Tensor], *texts: str) -> str:
    """SHA-256 of named tensors, with their types and shapes, and of texts."""
    digest = hashlib.sha256(repr(texts).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
