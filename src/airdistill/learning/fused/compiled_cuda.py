"""CUDA kernels compiled when they are needed: the only place that knows how PyTorch compiles and launches them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any

import torch

Launch = Callable[[tuple[int, int, int], list[Any]], None]


@cache
def compiled_kernel(file: str, name: str, threads: int, constants: tuple[tuple[str, int], ...]) -> Launch:
    """A kernel of one of this package's files, to launch on a grid of blocks of so many threads.

    Raises where PyTorch has no compiler, or another way to it.
    """
    source = "".join(f"#define {constant} {value}\n" for constant, value in constants)
    source += files("airdistill.learning.fused").joinpath(file).read_text()
    kernel = torch.cuda._compile_kernel(source, name)

    def launch(grid: tuple[int, int, int], arguments: list[Any]) -> None:
        kernel(grid, (threads, 1, 1), arguments)

    return launch
