"""Decisions made before a run: the plan that it follows (`plan`) and the arithmetic that it uses (`RunOptions`).

PyTorch is imported only when a run starts, because planning and reporting do not need it.
"""

from __future__ import annotations

import ctypes
import logging
import os
import warnings
from dataclasses import InitVar, asdict, dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from airdistill import DEFAULT_SCHEME
from airdistill.errors import InputError
from airdistill.scenario.loading import ScenarioLike, as_scenario, changed

if TYPE_CHECKING:
    import torch

    from airdistill.learning.fleet import Engine
    from airdistill.planning.plan import Plan

logger = logging.getLogger(__name__)

ENGINES = ("auto", "torch", "fused")
_DTYPES = ("float32", "float64")
# CPU: as many samples as fit into its cache. GPU: per device, enough to keep it busy without filling its memory.
_CHUNK_SAMPLES = {"cpu": 300, "cuda": 400}
# From malloc.h of the GNU C library.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
# An evaluation of 5,000 devices on the 10,000 test images of MNIST took ten times as long as a round of theirs.
_MOST_PREDICTIONS = 10_000_000
_SAMPLED_DEVICES, _SAMPLED_TESTS = 100, 10_000
_WRITTEN_IF_USED = ("eval_devices", "eval_samples")
_ENGINE_ON_DISK = "kernels"  # the key in run.json and comparison.json since version 0.1


def plan(
    scenario: ScenarioLike,
    scheme: str | None = None,
    rounds: int | Literal["optimal", "paper"] | None = None,
    ledger: str | PathLike[str] | None = None,
) -> Plan:
    """Return the plan that `run` with the same arguments follows.

    `scheme` is a scheme's name, or `package.module:Scheme`; by default it is the one that `run` trains with. The
    scheme named "ota_fd" is the paper's. `rounds` replaces the scenario's number of rounds. `ledger` is the folder of
    an earlier run of the same devices: the plan then has only the privacy budget that this run left.

    PyTorch is imported only for schemes that transmit gradients, to count the parameters of the model.

    >>> plan("quick", rounds=16).scenario.learning.receiver
    'tracking'
    >>> plan("quick", scheme="ota_fd", rounds=16).scenario.learning.receiver
    'linear'
    """
    from airdistill.schemes.planning import as_run_by, plan_scheme
    from airdistill.schemes.registry import load_scheme

    chosen = load_scheme(DEFAULT_SCHEME if scheme is None else scheme)
    adapted = as_run_by(chosen, as_scenario(scenario))
    if rounds is not None:
        adapted = changed(adapted, {"learning": {"rounds": rounds}})
    if ledger is None:
        return plan_scheme(chosen, adapted)
    from airdistill.runs.accounts import spent_by_earlier_runs

    return plan_scheme(chosen, adapted, spent_by_earlier_runs(Path(ledger), adapted))


@dataclass(frozen=True)
class RunOptions:
    """How a run is computed. Stored with the run, so that a resumed run repeats the same arithmetic.

    `device`, `engine`, `dtype`, `tf32` and `chunk_samples` may change the last bits of a result; the others do not.

    * `device`: "cpu", "cuda" or "auto".
    * `engine`: "torch" trains any model; "fused" uses compiled kernels and needs a network of the paper's form; "auto"
      uses the compiled kernels for networks of this form that have convolutions.
    * `threads`: devices trained in parallel; 0: one for each core.
    * `dtype`: "float32" or "float64".
    * `tf32`: a GPU rounds the factors of its products to ten bits.
    * `chunk_samples`: samples in one pass through a model; 0: a number that suits the device.
    * `kept_bytes`: memory for activations kept between forward and backward pass, bytes; None: chosen by the engine.
    * `eval_every`, `eval_also`: the test accuracy is measured every so many rounds, after the last one, and in the
      rounds listed in `eval_also`.
    * `eval_devices`, `eval_samples`: the accuracy is measured on so many devices and test samples, drawn at random with
      the seed, the same in all rounds and schemes; None: on all, or on a sample if devices × test samples exceed ten
      million.
    * `checkpoint_every`: rounds between checkpoints.
    * `kernels`: the former name of `engine`; deprecated, accepted as an argument only.
    """

    device: str = "cpu"
    engine: str = "auto"
    threads: int = 0
    dtype: str = "float32"
    tf32: bool = False
    chunk_samples: int = 0
    kept_bytes: int | None = None
    eval_every: int = 20
    eval_also: tuple[int, ...] = ()
    checkpoint_every: int = 5
    eval_devices: int | None = None
    eval_samples: int | None = None
    kernels: InitVar[str | None] = None

    def __post_init__(self, kernels: str | None) -> None:
        if kernels is not None:
            warnings.warn("RunOptions(kernels=...) is now RunOptions(engine=...)", DeprecationWarning, stacklevel=3)
            object.__setattr__(self, "engine", kernels)
        object.__setattr__(self, "eval_also", tuple(self.eval_also))  # JSON returns a list
        for name in ("eval_every", "checkpoint_every", "eval_devices", "eval_samples"):
            if (given := getattr(self, name)) is not None and given < 1:
                raise InputError(f"--{name.replace('_', '-')}", given, "must be at least 1")
        for name in ("threads", "chunk_samples"):
            if getattr(self, name) < 0:
                raise InputError(f"--{name.replace('_', '-')}", getattr(self, name), "must not be negative")
        if self.dtype not in _DTYPES:
            raise InputError("dtype", self.dtype, f"must be one of {', '.join(_DTYPES)}")
        if self.engine not in ENGINES:
            raise InputError("--engine", self.engine, f"must be one of {', '.join(ENGINES)}")

    def resolved(self, elsewhere: bool = False) -> RunOptions:
        """Return a copy with every automatic choice made, so that a resumed run does not choose differently.

        A run that is computed `elsewhere` may have a GPU that this machine has not.
        """
        device = self.device if elsewhere and self.device == "cuda" else self._device().type
        return replace(self, device=device, chunk_samples=self.chunk_samples or _CHUNK_SAMPLES[device])

    def for_fleet(self, num_devices: int, num_tests: int) -> RunOptions:
        """Return a copy with the sample of the evaluation decided: None then takes all devices, or all test samples.

        What is not given is limited only if the fleet would make more than ten million predictions at an evaluation.
        """
        devices, tests = self.eval_devices or num_devices, self.eval_samples or num_tests
        for name, given, total, what in (
            ("--eval-devices", devices, num_devices, "fleet has only {} devices"),
            ("--eval-samples", tests, num_tests, "test set has only {} samples"),
        ):
            if given > total:
                raise InputError(name, given, f"the {what.format(total)}")
        if devices * tests > _MOST_PREDICTIONS:
            devices = self.eval_devices or min(devices, _SAMPLED_DEVICES)
            tests = self.eval_samples or min(tests, _SAMPLED_TESTS)
        return replace(
            self,
            eval_devices=None if devices == num_devices else devices,
            eval_samples=None if tests == num_tests else tests,
        )

    def learning_engine(self) -> Engine:
        """Return the engine that these options describe; PyTorch is left one thread inside each operation."""
        import torch

        from airdistill.learning.fleet import Engine

        torch.set_num_threads(1)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self.tf32
        keep_freed_memory()
        workers = self.threads or len(os.sched_getaffinity(0))
        device, dtype, chunk = self._device(), getattr(torch, self.dtype), self.resolved().chunk_samples
        return Engine(device, dtype, chunk, self.kept_bytes, workers, device.type == "cuda", self.engine)

    def _device(self) -> torch.device:
        import torch

        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if self.device not in ("cpu", "cuda"):
            raise InputError("--device", self.device, "must be cpu, cuda or auto")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise InputError("--device", self.device, "this machine has no CUDA device")
        return torch.device(self.device)

    def to_dict(self) -> dict[str, Any]:
        """Return the options as they are stored with a run."""
        stored = {_ENGINE_ON_DISK if name == "engine" else name: value for name, value in asdict(self).items()}
        return {name: value for name, value in stored.items() if name not in _WRITTEN_IF_USED or value is not None}

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> RunOptions:
        """Return the options that `to_dict` wrote."""
        return cls(**{"engine" if name == _ENGINE_ON_DISK else name: value for name, value in stored.items()})


def keep_freed_memory() -> None:
    """Make the C library keep the memory that a round frees, in one pool for all threads.

    The activations of a round are gigabytes in large blocks. By default the library returns them to the system and
    maps them again page by page, which took as long as the arithmetic on two cores. Other C libraries do not have this
    setting and are left as they are.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError) as error:
        logger.debug("freed memory is returned to the system: %s", error)
        return
    mallopt(_M_ARENA_MAX, 1)
    mallopt(_M_MMAP_THRESHOLD, 1 << 30)
    mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
