"""How a run is carried out, as opposed to what it simulates."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from airdistill.errors import InputError
from airdistill.learning.evaluation import keep_freed_memory
from airdistill.learning.fleet import KERNELS, Engine

# On a CPU, what its cache holds; on a GPU, of every device at once, what keeps it busy without filling its memory.
_CHUNK_SAMPLES = {"cpu": 300, "cuda": 400}
_DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class RunOptions:
    """Stored with the run, so that a resumed run does the same arithmetic.

    `device`, `kernels`, `chunk_samples`, `dtype` and `tf32` may change the last bits of a result; the others never do.
    `threads` work on as many devices at once; 0 stands for one for each core. `kernels` are "torch" for any model,
    "fused" for those of the paper's form, or "auto": fused for those with convolutions. `chunk_samples` go through a
    model at once; 0 stands for what suits the device. `tf32` lets a GPU round the factors of its products to ten bits.
    Rounds are evaluated every so many, at the end, and those in `eval_also`.
    """

    device: str = "cpu"
    kernels: str = "auto"
    threads: int = 0
    dtype: str = "float32"
    tf32: bool = False
    chunk_samples: int = 0
    kept_bytes: int | None = None
    eval_every: int = 20
    eval_also: tuple[int, ...] = ()
    checkpoint_every: int = 5

    def __post_init__(self) -> None:
        object.__setattr__(self, "eval_also", tuple(self.eval_also))  # JSON gives a list back
        for name in ("eval_every", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise InputError(f"--{name.replace('_', '-')}", getattr(self, name), "must be at least 1")
        for name in ("threads", "chunk_samples"):
            if getattr(self, name) < 0:
                raise InputError(f"--{name.replace('_', '-')}", getattr(self, name), "must not be negative")
        if self.dtype not in _DTYPES:
            raise InputError("dtype", self.dtype, f"must be one of {', '.join(_DTYPES)}")
        if self.kernels not in KERNELS:
            raise InputError("--engine", self.kernels, f"must be one of {', '.join(KERNELS)}")

    def resolved(self) -> RunOptions:
        """The same with all choices made, so that a resumed run does not make them otherwise."""
        device = self._device().type
        return replace(self, device=device, chunk_samples=self.chunk_samples or _CHUNK_SAMPLES[device])

    def engine(self) -> Engine:
        """The arithmetic that these options ask for; leaves PyTorch one thread inside each operation."""
        torch.set_num_threads(1)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self.tf32
        keep_freed_memory()
        workers = self.threads or len(os.sched_getaffinity(0))
        device, dtype, chunk = self._device(), _DTYPES[self.dtype], self.resolved().chunk_samples
        return Engine(device, dtype, chunk, self.kept_bytes, workers, device.type == "cuda", self.kernels)

    def _device(self) -> torch.device:
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if self.device not in ("cpu", "cuda"):
            raise InputError("--device", self.device, "must be cpu, cuda or auto")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise InputError("--device", self.device, "this machine has no CUDA device")
        return torch.device(self.device)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
