"""Commands about samples: `radio export` and `radio decode`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from airdistill.cli.app import JsonOption, app, print_json, print_text, print_warnings

radio_app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
app.add_typer(radio_app, name="radio")


@radio_app.callback()
def _radio() -> None:
    """Baseband samples of a round: recordings in the SigMF format.

    Example: airdistill radio export runs/quick-ota_fd --round 3 --devices 0,1
    """


@radio_app.command("export")
def export_command(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run with air.medium = waveform.")],
    round_index: Annotated[int, typer.Option("--round", help="The round, from 1.")] = 1,
    devices: Annotated[
        str | None,
        typer.Option("--devices", metavar="0,1,...", help="Devices to write, or none; by default all."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Where to write; by default recordings/ in the run.")
    ] = None,
    datatype: Annotated[str, typer.Option("--datatype", help="cf32_le, or ci16_le with 16 bits an axis.")] = "cf32_le",
    date: Annotated[
        str | None,
        typer.Option("--date", metavar="TIME", help="core:datetime of the files, as 2026-01-31T12:00:00Z; else none."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write what devices transmitted and the server received in a round of a simulated run, as SigMF recordings.

    The round is computed again; nothing is charged, and no noise is drawn anew. A device's recording contains its own
    signal, and so is for test-beds: never give it to the server of a real run.

    Example: airdistill radio export runs/quick-ota_fd --round 3 --devices 0,1
    """
    from airdistill.report.progress import stage_bar
    from airdistill.report.recordings import device_numbers, print_exported, warnings_of
    from airdistill.report.terminal import Terminal
    from airdistill.runs.accounts import check_not_anothers
    from airdistill.runs.exporting import export_round

    check_not_anothers(out or folder, folder)
    with stage_bar(Terminal(stderr=True)) as report_stage:
        exported = export_round(
            folder, round_index, out, device_numbers(devices), datatype, date,
            lambda done, total: report_stage("rounds replayed", done, total),
        )  # fmt: skip
    print_warnings(warnings_of(exported))
    if as_json:
        print_json(exported.to_dict())
    else:
        print_exported(exported, Terminal())


@radio_app.command("decode")
def decode_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A recording of a reception, *.sigmf-meta.")],
    start: Annotated[
        int | None,
        typer.Option("--start", min=0, help="The frame begins at this sample: nothing is searched or corrected."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the knowledge to this .npz or .json file.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Decode a recording of a reception: the knowledge, with noise, carrier offset, timing and quality of the link.

    Example: airdistill radio decode runs/quick-ota_fd/recordings/round-0003/reception.sigmf-meta
    """
    from airdistill.radio.decoding import decode_file
    from airdistill.report.recordings import print_decoded, with_knowledge, write_knowledge
    from airdistill.report.terminal import Terminal

    decoded = decode_file(file, start)
    if out is not None:
        write_knowledge(decoded, out)
    if as_json:
        print_json(with_knowledge(decoded))
        return
    print_decoded(decoded, Terminal())
    if out is not None:
        print_text(f"Knowledge: {out}")
