"""What a run is worth: its certificate, and attacks on it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from airdistill.cli.app import JsonOption, SetOption, app, print_json, print_text


@app.command("certify")
def certify_command(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    devices: Annotated[bool, typer.Option("--devices", help="List every device.")] = False,
    second_opinion: Annotated[
        bool, typer.Option("--second-opinion", help="Ask Google's dp-accounting for the worst device's ε as well.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """What a run guarantees, to whom, under which assumption; writes certificate.json and certificate.html.

    Example: airdistill certify runs/quick-ota_fd --devices
    """
    from airdistill.report.certificate_page import write_certificate
    from airdistill.report.certificate_table import print_certificate
    from airdistill.report.terminal import Terminal
    from airdistill.runs.accounts import certify

    certificate = certify(folder)
    page = write_certificate(certificate, folder)
    if as_json:
        print_json(certificate.to_dict())
        return
    print_certificate(certificate, Terminal(), devices)
    if second_opinion:
        from airdistill.audit.second_opinion import opinion_in_words

        print_text(opinion_in_words(folder))
    print_text(f"Certificate: {page}")


@app.command("audit")
def audit_command(
    subject: Annotated[str, typer.Argument(metavar="RUN|SCENARIO", help="A run's folder, a preset or a TOML file.")],
    scheme: Annotated[str | None, typer.Option("--scheme", metavar="NAME", help="Of a scenario; airdistill.")] = None,
    changes: SetOption = None,
    audited: Annotated[int, typer.Option("--audited-device", help="Whose data is replaced.")] = 0,
    rounds: Annotated[int | None, typer.Option("--rounds", help="Audit so many; by default 50 at most.")] = None,
    transcripts: Annotated[int, typer.Option("--transcripts", help="Fresh broadcasts to follow pairs along.")] = 20,
    candidates: Annotated[int, typer.Option("--candidates", help="Records to try; the worst is followed.")] = 12,
    trials: Annotated[int, typer.Option("--trials", help="Of the attack on drawn noise, in each world.")] = 1000,
    shadows: Annotated[int, typer.Option("--shadows", help="Shadow fleets of membership inference; even.")] = 8,
    shadow_devices: Annotated[int, typer.Option("--shadow-devices", help="Devices of a shadow fleet, at most.")] = 10,
    parts: Annotated[
        str, typer.Option("--parts", metavar="A,B", help="Which attacks to make.")
    ] = "exact,empirical,membership",
    seed: Annotated[int, typer.Option("--seed", help="Of the attacks' own draws.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="By default the run's folder, or one under audits/.")
    ] = None,
    device: Annotated[str | None, typer.Option("--device", help="cpu, cuda or auto; by default as the run.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Attack what the server sees and hold it against the certificate; exit code 1 if that is violated.

    Example: airdistill audit runs/quick-ota_fd --rounds 10
    """
    from airdistill.audit import AuditOptions, audit
    from airdistill.audit.auditing import subject_of
    from airdistill.report.audit_page import write_audit
    from airdistill.report.audit_table import print_audit
    from airdistill.report.progress import stage_bar
    from airdistill.report.terminal import Terminal
    from airdistill.runs.accounts import check_not_anothers

    chosen = tuple(part.strip() for part in parts.split(","))
    options = AuditOptions(audited, rounds, transcripts, candidates, trials, shadows, shadow_devices, seed, chosen)
    found = subject_of(subject, scheme, changes, device)
    folder = out or found.folder or Path("audits") / f"{found.plan.scenario.name}-{found.scheme.name}"
    check_not_anothers(folder, found.folder)
    with stage_bar(Terminal(stderr=True)) as tell:
        measured = audit(found.plan, found.scheme, options, found.run_options, tell)
    page = write_audit(measured, folder, found.folder)
    if as_json:
        print_json(measured.to_dict())
    else:
        print_audit(measured, Terminal())
        print_text(f"Audit: {page}")
    if measured.violations:
        sys.exit(1)
