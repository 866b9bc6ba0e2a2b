"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ScenarioArgument = Annotated[str, typer.Argument(metavar="SCENARIO", help="A preset's name or a TOML file.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help='Change a field: --set radio.peak_power="10 mW". Repeatable.'),
]
LedgerOption = Annotated[
    Path | None,
    typer.Option("--ledger", metavar="RUN", help="An earlier run of the same devices: go on from what they spent."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
SchemeOption = Annotated[
    str, typer.Option("--scheme", metavar="NAME", help="A scheme's name, or your own as package.module:Scheme.")
]
DeviceOption = Annotated[str, typer.Option("--device", help="cpu, cuda or auto.")]
EngineOption = Annotated[
    str, typer.Option("--engine", help="fused: kernels for the paper's kind of network; torch: any model; auto.")
]
Tf32Option = Annotated[bool, typer.Option("--tf32", help="On a GPU: faster products of ten-bit factors.")]
ThreadsOption = Annotated[int, typer.Option("--threads", help="Devices worked on at once; 0: one for each core.")]
EvalEveryOption = Annotated[int, typer.Option("--eval-every", help="Rounds between two evaluations.")]
CheckpointEveryOption = Annotated[int, typer.Option("--checkpoint-every", help="Rounds between checkpoints.")]
JobsOption = Annotated[int, typer.Option("--jobs", min=0, help="Runs at once; 0: one for each core.")]
