"""The rules that a scenario must keep for the transceiver as the paper prints it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airdistill.errors import InputError

if TYPE_CHECKING:
    from airdistill.scenario.model import Scenario


def check_paper_transceiver(scenario: Scenario) -> None:
    privacy, radio = scenario.privacy, scenario.radio
    if radio.transceiver != "paper":
        return
    needed = {"sensitivity": "paper", "accountant": "paper", "trust": "receiver_noise", "relabel": False}
    for field, value in needed.items():
        if getattr(privacy, field) != value:
            rule = f"the paper's transceiver is built for {field} = {value} alone"
            raise InputError(f"privacy.{field}", getattr(privacy, field), rule)
    for name, given, wanted in [
        ("radio.truncation", radio.truncation, 0),
        ("radio.csi_error_db", radio.csi_error_db, None),
        ("privacy.carry_over", privacy.carry_over, False),
        ("fleet.participation", scenario.fleet.participation, 1),
    ]:
        if given != wanted:
            raise InputError(name, given, "the paper's transceiver knows nothing of it")
