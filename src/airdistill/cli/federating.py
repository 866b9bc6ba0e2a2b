"""Federations of real processes, with Flower."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from airdistill import DEFAULT_SCHEME
from airdistill.cli.app import app, print_json, print_text
from airdistill.cli.options import JsonOption, SchemeOption
from airdistill.errors import AirDistillError

if TYPE_CHECKING:
    from airdistill.flower.demo import Demonstration

flower_app = typer.Typer(
    rich_markup_mode=None, no_args_is_help=True, help="Federations of real processes, with Flower."
)
app.add_typer(flower_app, name="flower")


@flower_app.callback()
def _flower() -> None:
    """Federations of real processes, with Flower.

    Example: airdistill flower demo --devices 4 --rounds 5
    """


@flower_app.command("demo")
def demo_command(
    devices: Annotated[int, typer.Option("--devices", min=2, max=64, help="Each is a few processes.")] = 4,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Plan and run so many rounds.")] = 5,
    scheme: SchemeOption = DEFAULT_SCHEME,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Keep the federation's folders here; else none are left."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a federation on this machine: a server and devices that speak over TLS and know each other by keys.

    The medium is emulated: the server plays the channel and sees single signals. For test-beds only.

    Example: airdistill flower demo --devices 4 --rounds 5
    """
    if find_spec("flwr") is None:
        raise AirDistillError("Flower is not installed: pip install 'airdistill[flower]'")
    from tempfile import TemporaryDirectory

    from airdistill.runs.folder import new_folder

    if out is not None:
        _demonstrate(devices, rounds, scheme, new_folder(out, "flower-demo"), as_json)
        return
    with TemporaryDirectory(prefix="airdistill-flower-") as folder:
        _demonstrate(devices, rounds, scheme, Path(folder), as_json)


def _demonstrate(devices: int, rounds: int, scheme: str, folder: Path, as_json: bool) -> None:
    from airdistill.flower.demo import demo_scenario, demonstrate
    from airdistill.flower.station import EMULATED

    if as_json:
        shown = demonstrate(demo_scenario(devices, rounds), scheme, folder, lambda _: None)
        traffic = {**vars(shown.traffic), "payload_bytes": shown.traffic.payload_bytes}
        print_json({"assumption": EMULATED, "traffic": traffic, "rounds": shown.records})
        return
    print_text(f"{devices} devices and a server on this machine, over TLS. {EMULATED}")
    shown = demonstrate(demo_scenario(devices, rounds), scheme, folder, _print_round)
    _print_end(shown)


def _print_round(record: dict[str, Any]) -> None:
    accuracy = f"accuracy {record['accuracy']['mean']:.3f}" if "accuracy" in record else ""
    loss = "no losses told" if record["loss"] is None else f"loss {record['loss']:.4f}"
    void = "" if record["knowledge"] is not None else "  nothing broadcast"
    without = f"  without devices {', '.join(record['without_signal'])}" if record["without_signal"] else ""
    print_text(f"round {record['round']}  {loss}  {accuracy}  ε {record['epsilon_spent']:.3g}{without}{void}")


def _print_end(shown: Demonstration) -> None:
    traffic = shown.traffic
    print_text(f"{shown.start_s:.1f} s to start, {shown.run_s:.1f} s for {len(shown.records)} rounds")
    print_text(
        f"a round and device: {traffic.from_device:,.0f} bytes up and {traffic.to_device:,.0f} down with all that "
        f"Flower adds; {traffic.num_symbols} complex numbers are {traffic.payload_bytes:,} bytes, "
        f"and the model would be {traffic.model_bytes:,}"
    )
