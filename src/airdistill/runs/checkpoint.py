"""Checkpoints: tensors in a safetensors file, the rest in a JSON header; the last two are kept.

The header is written last and contains the digest of the tensors: a checkpoint is valid only if both agree. PyTorch is
imported only to read or write tensors, because certificates need the headers alone.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from airdistill.files import json_value, write_parts, write_whole
from airdistill.stages import report_stage

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)
_KEPT = 2
_PART_BYTES = 64 << 20
# Names of the number types in the safetensors format.
_TYPES = {
    "torch.float64": "F64",
    "torch.float32": "F32",
    "torch.float16": "F16",
    "torch.bfloat16": "BF16",
    "torch.int64": "I64",
    "torch.int32": "I32",
    "torch.int16": "I16",
    "torch.int8": "I8",
    "torch.uint8": "U8",
    "torch.bool": "BOOL",
}


@dataclass(frozen=True)
class Checkpoint:
    """The state after a round, and the lengths and digests of round file and ledger at that time."""

    round_index: int
    tensors: dict[str, Tensor]
    numbers: dict[str, Any]
    rounds_bytes: int
    rounds_digest: str
    ledger: dict[str, Any]


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint and remove all but the last two. The tensors are hashed while they are written."""
    hashed, content = hashlib.sha256(), SerializedTensors(checkpoint.tensors)
    tensors, header = _paths(folder, checkpoint.round_index)
    write_parts(tensors, _hashed(content, hashed))
    described: dict[str, Any] = {
        "round": checkpoint.round_index,
        "numbers": checkpoint.numbers,
        "rounds_bytes": checkpoint.rounds_bytes,
        "rounds_digest": checkpoint.rounds_digest,
        "ledger": checkpoint.ledger,
        "tensors_digest": hashed.hexdigest(),
    }
    body = json.dumps(described, sort_keys=True)
    write_whole(header, f"{body}\n{hashlib.sha256(body.encode()).hexdigest()}\n".encode())
    for old in _headers(folder)[_KEPT:]:
        old.unlink()
        old.with_suffix(".safetensors").unlink(missing_ok=True)


def _hashed(content: SerializedTensors, hashed: hashlib._Hash) -> Iterator[memoryview]:
    """The parts of a file, hashed as they pass by; progress is reported in megabytes."""
    done = 0
    for part in content:
        hashed.update(part)
        yield part
        done += len(part)
        report_stage("checkpoint, MB", done // 10**6, content.num_bytes // 10**6)


def serialized(tensors: dict[str, Tensor]) -> bytes:
    """Return tensors as the content of a safetensors file."""
    return b"".join(SerializedTensors(tensors))


class SerializedTensors:
    """Tensors as the parts of a safetensors file, in a contiguous layout even if they share memory or have strides.

    The library's own `save` copies hundreds of small tensors one by one, which took longer than the rounds between two
    checkpoints. Here tensors of one type are concatenated, which needs one transfer from a GPU; but at most 64 MB at
    once, because a large fleet's models would otherwise be held twice more.
    See https://github.com/huggingface/safetensors#format
    """

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        header: dict[str, dict[str, Any]] = {}
        self._tensors: list[Tensor] = []
        end = 0
        # Types of larger numbers first: every offset is then a multiple of the number's size.
        for dtype in sorted(
            {tensor.dtype for tensor in tensors.values()}, key=lambda each: (-each.itemsize, str(each))
        ):
            of_type = {name: tensor.detach() for name, tensor in tensors.items() if tensor.dtype == dtype}
            for name, tensor in of_type.items():
                start, end = end, end + tensor.numel() * dtype.itemsize
                header[name] = {"dtype": _TYPES[str(dtype)], "shape": list(tensor.shape), "data_offsets": [start, end]}
            self._tensors += of_type.values()
        described = json.dumps(header, separators=(",", ":")).encode()
        described += b" " * (-len(described) % 8)
        self._head = len(described).to_bytes(8, "little") + described
        self.num_bytes = len(self._head) + end

    def __iter__(self) -> Iterator[memoryview]:
        import torch

        yield memoryview(self._head)
        for _, alike in groupby(self._tensors, key=lambda tensor: (tensor.dtype, tensor.device)):
            for together in _batches(alike):
                joined = torch.cat([tensor.reshape(-1) for tensor in together]).cpu()
                yield joined.view(torch.uint8).numpy().data


def _batches(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors in their order, of up to 64 MB together; a larger one is alone."""
    batch: list[Tensor] = []
    size = 0
    for tensor in tensors:
        num_bytes = tensor.numel() * tensor.dtype.itemsize
        if batch and size + num_bytes > _PART_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(tensor)
        size += num_bytes
    if batch:
        yield batch


def newest_checkpoint(folder: Path, before: int | None = None) -> Checkpoint | None:
    """Return the newest valid checkpoint, or that before a round; damaged ones are skipped with a warning."""
    for header in _headers(folder):
        if before is not None and header.stem >= _paths(folder, before)[1].stem:
            continue
        try:
            return _read(header)
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            logger.warning("%s: damaged (%s), skipped", header.stem, error)
    return None


def newest_ledger_marks(folder: Path) -> list[dict[str, Any]]:
    """Return the length and digest of the ledger at the newest valid checkpoint header; empty without a checkpoint."""
    found = _newest_described(folder)
    return [] if found is None else [found["ledger"]]


def newest_rounds_mark(folder: Path) -> tuple[int, str] | None:
    """Return the length in bytes and the digest of the round file at the newest valid checkpoint header."""
    found = _newest_described(folder)
    return None if found is None else (found["rounds_bytes"], found["rounds_digest"])


def _newest_described(folder: Path) -> dict[str, Any] | None:
    for header in _headers(folder):
        try:
            described = _described(header)
            if {"ledger", "rounds_bytes", "rounds_digest"} <= described.keys():
                return described
        except (OSError, ValueError):
            continue  # `newest_checkpoint` warns about it
    return None


def _described(header: Path) -> dict[str, Any]:
    body, digest = header.read_text().splitlines()
    if hashlib.sha256(body.encode()).hexdigest() != digest:
        raise ValueError("the digest of its header does not match")
    described: dict[str, Any] = json_value(body)
    return described


def _read(header: Path) -> Checkpoint:
    from safetensors.torch import load_file

    described, path = _described(header), header.with_suffix(".safetensors")
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != described["tensors_digest"]:
            raise ValueError("the digest of its tensors does not match")
    return Checkpoint(
        described["round"],
        load_file(path),
        described["numbers"],
        described["rounds_bytes"],
        described["rounds_digest"],
        described["ledger"],
    )


def _headers(folder: Path) -> list[Path]:
    """Return the header files, newest first."""
    return sorted(folder.glob("checkpoint-*.json"), reverse=True)


def _paths(folder: Path, round_index: int) -> tuple[Path, Path]:
    stem = folder / f"checkpoint-{round_index:08d}"
    return stem.with_suffix(".safetensors"), stem.with_suffix(".json")
