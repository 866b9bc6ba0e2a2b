"""A certificate as a section of a report, and as a page of its own."""

from __future__ import annotations

from pathlib import Path

from airdistill import __version__
from airdistill.files import write_whole
from airdistill.privacy.certificate import UNDER_ASSUMPTIONS, Certificate
from airdistill.report.certificate_table import account_rows, assumption_lines, model_rows
from airdistill.report.page import Bullets, DataTable, Page, Paragraph, Section, Verdict, Verdicts, render
from airdistill.runs.folder import CERTIFICATE, write_json

CERTIFICATE_PAGE = "certificate.html"


def write_certificate(certificate: Certificate, folder: Path) -> Path:
    """`certificate.json` and `certificate.html` in the run's folder."""
    write_json(folder / CERTIFICATE, certificate.to_dict())
    path = folder / CERTIFICATE_PAGE
    write_whole(path, render(certificate_page(certificate)).encode())
    return path


def certificate_page(certificate: Certificate) -> Page:
    terms = certificate.header
    return Page(
        title=f"Certificate of {terms.name}, {terms.scheme}",
        subtitle=f"What is guaranteed to whom, under which assumption: {certificate.releases_in_words}",
        sections=(certificate_section(certificate), devices_section(certificate, all_devices=True)),
        made_by=f"airdistill {__version__}",
    )


def certificate_section(certificate: Certificate) -> Section:
    """The verdict, what it says and what it rests on."""
    terms = certificate.header
    asked = f"(ε, δ) for every one of {terms.num_devices} devices, sensitivity {terms.sensitivity}, trust {terms.trust}"
    fallible = ", ".join(each.name for each in certificate.assumptions if not each.declared)
    assumed = (f"Assumed: {fallible}.",) if certificate.verdict == UNDER_ASSUMPTIONS else ()
    source = f"ledger {certificate.ledger_digest[:16]}" if certificate.ledger_digest else ""
    verdict = Verdict(asked, certificate.verdict, " ".join((*assumed, *certificate.reasons)), source)
    table = DataTable(
        *model_rows(certificate),
        caption="ε of the worst device, by sensitivity model and by whose noise counts; * is declared.",
    )
    return Section(
        "Certificate",
        (
            Verdicts((verdict,)),
            Paragraph("What it says:"),
            Bullets(certificate.statement),
            Paragraph("What it assumes:"),
            Bullets(tuple(assumption_lines(certificate))),
            table,
        ),
    )


def devices_section(certificate: Certificate, all_devices: bool = False) -> Section:
    table = DataTable(
        *account_rows(certificate, all_devices),
        caption="What every device asked, what the paper's formula says, and ε under every sensitivity model with the "
        "declared trust model; * is declared: what was spent.",
    )
    return Section("Privacy spent", (table,))
