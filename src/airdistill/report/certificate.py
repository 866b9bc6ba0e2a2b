"""A certificate as rows, on the terminal, as a section of a report and as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from airdistill import __version__
from airdistill.arrays import FloatArray
from airdistill.files import write_whole
from airdistill.privacy.certificate import (
    FAILS,
    HOLDS,
    SIMULATION,
    UNDER_ASSUMPTIONS,
    Certificate,
)
from airdistill.privacy.groups import Groups
from airdistill.privacy.sensitivity import SENSITIVITY_MODELS
from airdistill.report.page import Bullets, DataTable, Facts, Page, Paragraph, Section, Verdict, Verdicts, render
from airdistill.report.terminal import bullets, facts_table, starred_table
from airdistill.report.wording import MOST_ROWS, device_rows, starred
from airdistill.runs.folder import CERTIFICATE, write_json
from airdistill.units import rounded_up

CERTIFICATE_PAGE = "certificate.html"
_MOST_GROUPS = 5000  # of identical devices; a page with more rows is slow to open, and certificate.json has them all
_COLOURS = {HOLDS: "green", FAILS: "red"}


def print_certificate(certificate: Certificate, console: Console, all_devices: bool = False) -> None:
    """Print the guarantee, the verdict, the assumptions, the numbers and what the certificate is of."""
    terms, colour = certificate.header, _COLOURS.get(certificate.verdict, "yellow")
    console.print(f"[bold]{escape(certificate.headline)}[/bold]", highlight=False)
    console.print(f"[bold {colour}]{certificate.verdict_in_words}[/bold {colour}]")
    console.print(f"{escape(terms.name)}, {escape(terms.scheme)}: {certificate.releases_in_words}", highlight=False)
    if certificate.reasons:
        console.print(bullets(certificate.reasons, f"[{colour}]![/{colour}]"))
    console.print("[bold]Guarantees[/bold]", bullets(certificate.statement, "·"))
    console.print("[bold]Assumptions[/bold]", bullets(assumption_lines(certificate), "·"))
    console.print("[bold]ε of the worst device[/bold], by sensitivity model and trust model")
    caption = "* declared; for all releases so far, at each device's own δ"
    console.print(starred_table(*model_rows(certificate), caption=caption))
    console.print("[bold]Every device[/bold], with the declared trust model")
    caption = "* declared: the ε spent" + ("" if all_devices else "; --devices lists every device")
    console.print(starred_table(*account_rows(certificate, all_devices), caption=caption, narrow=True))
    console.print(facts_table(identity_rows(certificate)))


def write_certificate(certificate: Certificate, folder: Path, stored: dict[str, Any] | None = None) -> Path:
    """Write `certificate.json` and `certificate.html` to a folder, and return the page's path.

    `stored` is the content of the first file if it is more than the certificate: a signed one.
    """
    write_json(folder / CERTIFICATE, certificate.to_dict() if stored is None else stored)
    path = folder / CERTIFICATE_PAGE
    write_whole(path, render(certificate_page(certificate)).encode())
    return path


def certificate_page(certificate: Certificate) -> Page:
    """Return the certificate with the accounts of all devices, or a summary if too many of them differ."""
    terms = certificate.header
    return Page(
        title=f"Certificate of {terms.name}, {terms.scheme}",
        subtitle=certificate.headline,
        sections=(
            certificate_section(certificate),
            devices_section(certificate, all_devices=certificate.devices.groups.num_groups <= _MOST_GROUPS),
            Section("Date and digests", (Facts(tuple(identity_rows(certificate))),)),
        ),
        made_by=f"airdistill {__version__}",
    )


def certificate_section(certificate: Certificate) -> Section:
    """Return the verdict, the guarantees and the assumptions."""
    is_conditional = certificate.verdict in (UNDER_ASSUMPTIONS, SIMULATION)
    verdict = certificate.verdict_in_words.removeprefix(f"{SIMULATION}: ")
    words = (f"{verdict[0].upper()}{verdict[1:]}.",) if is_conditional else ()
    source = f"ledger {certificate.ledger_digest[:16]}" if certificate.ledger_digest else ""
    numbers = " ".join((*words, *certificate.reasons))
    item = Verdict(certificate.headline, certificate.verdict, numbers, source)
    table = DataTable(
        *model_rows(certificate),
        caption="ε of the worst device, by sensitivity model and trust model; * is declared.",
    )
    return Section(
        "Certificate",
        (
            Verdicts((item,)),
            Paragraph("Guarantees:"),
            Bullets(certificate.statement),
            Paragraph("Assumptions:"),
            Bullets(tuple(assumption_lines(certificate))),
            table,
        ),
    )


def devices_section(certificate: Certificate, all_devices: bool = False) -> Section:
    """Return what the devices have spent."""
    table = DataTable(
        *account_rows(certificate, all_devices),
        caption="Target of every device, ε by the paper's formula, and ε under every sensitivity model with the "
        "declared trust model; * is declared: the ε spent.",
    )
    return Section("Privacy spent", (table,))


def identity_rows(certificate: Certificate) -> list[tuple[str, str]]:
    """Return labels and values of what the certificate is of: date, version, and digests of scenario, data, ledger."""
    terms = certificate.header
    return [
        ("Issued", f"{certificate.issued or 'with no date, by the run itself'}, airdistill {__version__}"),
        ("Scenario", terms.scenario_digest or "not recorded in the ledger"),
        ("Data", terms.data_digest or "not recorded: in a federation every device has its own"),
        ("Ledger", certificate.ledger_digest or "in memory"),
    ]


def assumption_lines(certificate: Certificate) -> list[str]:
    """Return a line for each assumption."""
    return [f"{each.name}: {each.sentence}" for each in certificate.assumptions]


def model_rows(certificate: Certificate) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Return columns and rows of the worst ε under every sensitivity and trust model, and by the paper's formula."""
    terms = certificate.header
    columns = ("sensitivity", *(starred(trust, terms.trust) for trust in certificate.trust_names))
    rows = [
        (
            starred(model, terms.sensitivity),
            *(rounded_up(certificate.worst(model, trust)) for trust in certificate.trust_names),
        )
        for model in SENSITIVITY_MODELS
    ]
    formula = float(certificate.devices.paper_formula.max())
    return columns, (*rows, ("paper's formula", rounded_up(formula), *[""] * (len(columns) - 2)))


def account_rows(
    certificate: Certificate, all_devices: bool = False
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Return columns and rows of every device's target and spent ε. Large fleets are summarised by default.

    Of a certificate by groups, identical devices share a row.
    """
    terms, accounts = certificate.header, certificate.devices
    columns = ("device", "target ε", "δ", "formula", *(starred(m, terms.sensitivity) for m in SENSITIVITY_MODELS))
    columns_of_group = [
        accounts.epsilon_asked,
        accounts.delta_in_all,
        accounts.paper_formula,
        *(accounts.by_model[model][terms.trust] for model in SENSITIVITY_MODELS),
    ]
    if terms.format == 1 or not (all_devices or accounts.groups.num_groups <= MOST_ROWS):
        return columns, device_rows([accounts.groups.expand(each) for each in columns_of_group], all_devices)
    return columns, tuple(zip(_names(accounts.groups), *map(_rounded, columns_of_group), strict=True))


def _names(groups: Groups) -> list[str]:
    """Return what to call the devices of each group: the first, and how many are like it."""
    pairs = zip(groups.first.tolist(), groups.sizes.tolist(), strict=True)
    return [f"{first}" if size == 1 else f"{first} and {size - 1} alike" for first, size in pairs]


def _rounded(values: FloatArray) -> list[str]:
    return [rounded_up(value) for value in values]
