"""The commands `airdistill flower` (federations of real processes) and `airdistill serve` (the page in the browser)."""

from __future__ import annotations

from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from airdistill import DEFAULT_SCHEME
from airdistill.cli.app import (
    JsonOption,
    LedgerOption,
    ScenarioArgument,
    SchemeOption,
    SetOption,
    app,
    print_json,
    print_text,
)
from airdistill.errors import AirDistillError

if TYPE_CHECKING:
    from airdistill.flower.demo import Demonstration
    from airdistill.scenario.model import Scenario


_MEDIA = {
    "secure_sum": "The server sees only sums of noisy signals; the accuracy is read from the devices' own folders.",
    "emulated": "The medium is emulated: the server simulates the channel and sees single signals. For test-beds only.",
}


class Medium(StrEnum):
    """The media of a demonstration; the medium radio needs hardware."""

    secure_sum = "secure_sum"
    emulated = "emulated"


flower_app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
app.add_typer(flower_app, name="flower")


@flower_app.callback()
def _flower() -> None:
    """Federations of real processes, with Flower.

    Example: airdistill flower demo --devices 4 --rounds 5
    """


@flower_app.command("demo")
def demo_command(
    devices: Annotated[
        int, typer.Option("--devices", min=2, max=64, help="Number of devices; each is a few processes.")
    ] = 4,
    rounds: Annotated[
        int | None,
        typer.Option("--rounds", min=1, help="Number of rounds; by default 5, and 1 for feature means."),
    ] = None,
    medium: Annotated[
        Medium, typer.Option("--medium", help="How the signals are added: by a secure sum, or by the server itself.")
    ] = Medium.secure_sum,
    scheme: SchemeOption = DEFAULT_SCHEME,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Keep the federation's folders here; without it they are deleted."),
    ] = None,
    changes: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a federation on this machine: a server and devices, connected over TLS and authenticated by keys.

    With the medium "emulated" the server simulates the channel and sees single signals: for test-beds only. A scheme on
    a public set gets 400 public samples.

    Example: airdistill flower demo --scheme airdistill_features --devices 4
    """
    _require_flower()
    from tempfile import TemporaryDirectory

    from airdistill.flower.demo import demo_scenario
    from airdistill.runs.folder import new_folder

    scenario = demo_scenario(devices, rounds, medium.value, scheme, changes or [])
    if out is not None:
        _demonstrate(scenario, scheme, new_folder(out, "flower-demo"), as_json)
        return
    with TemporaryDirectory(prefix="airdistill-flower-") as folder:
        _demonstrate(scenario, scheme, Path(folder), as_json)


@flower_app.command("prepare")
def prepare_command(
    scenario: ScenarioArgument,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A new folder for the federation.")],
    host: Annotated[
        str, typer.Option("--host", help="Name or address by which devices reach the server.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port of the server.")] = 9092,
    scheme: SchemeOption = DEFAULT_SCHEME,
    seeded: Annotated[bool, typer.Option("--seeded", help="Reproducible noise, which gives no protection.")] = False,
    ledger: LedgerOption = None,
    changes: SetOption = None,
) -> None:
    """Make the folders of a federation: one for the server and one for each device, with keys and certificates.

    The noise is secure unless --seeded is given. With --ledger, the folder of an earlier federation's server or device,
    it is planned for the budget that is left. docs/deploy.md describes the next steps.

    Example: airdistill flower prepare quick --out federation --set fleet.devices=2 --set air.medium=secure_sum
    """
    _require_flower()
    from airdistill.flower.demo import prepare, prepare_keys
    from airdistill.runs.folder import new_folder
    from airdistill.scenario.loading import load

    noise = "privacy.noise=seeded" if seeded else "privacy.noise=secure"
    given = load(scenario, [noise, *(changes or [])])
    folders = prepare(new_folder(out, "federation"), given, scheme, ledger)
    prepare_keys(folders, host, port)
    print_text(f"{out}: a server and {len(folders.devices)} devices, medium {folders.scenario.air.medium}")


def _require_flower() -> None:
    if find_spec("flwr") is None:
        raise AirDistillError("Flower is not installed: pip install 'airdistill[flower]'")


def _demonstrate(scenario: Scenario, scheme: str, folder: Path, as_json: bool) -> None:
    from airdistill.flower.demo import demonstrate

    if as_json:
        shown = demonstrate(scenario, scheme, folder, lambda _: None)
        print_json({"medium": scenario.air.medium, "traffic": vars(shown.traffic), "rounds": shown.records})
        return
    print_text(f"{scenario.num_devices} devices and a server on this machine, over TLS. {_MEDIA[scenario.air.medium]}")
    _print_end(demonstrate(scenario, scheme, folder, _print_round))


def _print_round(record: dict[str, Any]) -> None:
    accuracy = record["accuracy_in_folders"]
    parts = [f"round {record['round']}"]
    parts += [] if record["loss"] is None else [f"loss {record['loss']:.4f}"]
    parts += [] if accuracy is None else [f"accuracy {accuracy:.3f}"]
    parts += [f"ε {record['epsilon_spent']:.3g}"]
    parts += [f"without devices {', '.join(record['without_signal'])}"] if record["without_signal"] else []
    parts += [] if record["nothing_because"] is None else [f"no sum in this round: {record['nothing_because']}"]
    print_text("  ".join(parts))


def _print_end(shown: Demonstration) -> None:
    traffic = shown.traffic
    print_text(f"{shown.start_s:.1f} s to start, {shown.run_s:.1f} s for {len(shown.records)} rounds")
    print_text(
        f"per round and device: {traffic.from_device:,.0f} bytes up and {traffic.to_device:,.0f} bytes down with the "
        f"overhead of Flower and the medium; the {traffic.num_numbers} numbers are {traffic.payload_bytes:,} bytes, "
        f"and the model would be {traffic.model_bytes:,} bytes"
    )


@app.command("serve")
def serve_command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the runs to show.")] = Path("runs"),
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port of the page.")] = 8501,
    address: Annotated[
        str,
        typer.Option("--address", help="An address other than localhost opens the page to a network, read-only."),
    ] = "localhost",
    open_browser: Annotated[bool, typer.Option("--open", help="Also open a browser.")] = False,
) -> None:
    """Serve a page in the browser: plan with sliders, watch and compare runs. Ctrl-C stops it; runs continue.

    Example: airdistill serve runs --port 8600
    """
    from airdistill.web.serving import serve

    serve(folder, address, port, open_browser)
