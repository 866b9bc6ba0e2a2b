"""A certificate on the terminal."""

from __future__ import annotations

import numpy as np
from rich.console import Console
from rich.markup import escape

from airdistill.privacy.certificate import FAILS, HOLDS, Certificate
from airdistill.privacy.release import TRUST_MODELS
from airdistill.privacy.sensitivity import SENSITIVITY_MODELS
from airdistill.report.plan_table import bullets, device_rows, starred_table
from airdistill.report.words import number

_COLOURS = {HOLDS: "green", FAILS: "red"}


def print_certificate(certificate: Certificate, console: Console, all_devices: bool = False) -> None:
    """The verdict first, then what it says, what it rests on, and the numbers."""
    terms, colour = certificate.header, _COLOURS.get(certificate.verdict, "yellow")
    console.print(f"[bold]{escape(terms.name)}, {escape(terms.scheme)}[/bold]: {certificate.releases_in_words}")
    console.print(f"[bold {colour}]{certificate.verdict_in_words}[/bold {colour}]")
    if certificate.reasons:
        console.print(bullets(certificate.reasons, f"[{colour}]![/{colour}]"))
    console.print("[bold]What it says[/bold]", bullets(certificate.statement, "·"))
    console.print("[bold]What it assumes[/bold]", bullets(assumption_lines(certificate), "·"))
    console.print("[bold]ε of the worst device[/bold], by sensitivity model and by whose noise counts")
    model_table = starred_table(*model_rows(certificate))
    model_table.caption = "* declared; of all releases so far, at each device's own δ"
    console.print(model_table)
    console.print("[bold]Every device[/bold], with the declared trust model")
    table = starred_table(*account_rows(certificate, all_devices), narrow=True)
    table.caption = "* declared: what was spent" + ("" if all_devices else "; --devices lists every device")
    console.print(table)


def assumption_lines(certificate: Certificate) -> list[str]:
    return [f"{each.name}: {each.sentence}" for each in certificate.assumptions]


def model_rows(certificate: Certificate) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Columns and rows of the worst ε under every sensitivity model and trust model, and by the paper's formula."""
    terms = certificate.header
    columns = ("sensitivity", *(_starred(trust, terms.trust) for trust in TRUST_MODELS))
    rows = [
        (_starred(model, terms.sensitivity), *(number(certificate.worst(model, trust)) for trust in TRUST_MODELS))
        for model in SENSITIVITY_MODELS
    ]
    formula = max(account.paper_formula for account in certificate.devices)
    return columns, (*rows, ("paper's formula", number(formula), "", ""))


def account_rows(
    certificate: Certificate, all_devices: bool = False
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Columns and rows of what every device asked and spent; large fleets are summed up unless asked for."""
    terms, accounts = certificate.header, certificate.devices
    columns = ("device", "asked ε", "δ", "formula", *(_starred(m, terms.sensitivity) for m in SENSITIVITY_MODELS))
    values = [
        np.array([account.epsilon_asked for account in accounts]),
        np.array([account.delta for account in accounts]),
        np.array([account.paper_formula for account in accounts]),
        *(np.array([account.by_model[model][terms.trust] for account in accounts]) for model in SENSITIVITY_MODELS),
    ]
    return columns, device_rows(values, all_devices)


def _starred(name: str, declared: str) -> str:
    return f"{name}*" if name == declared else name
