"""Commands about the privacy of a run: `certify` and `audit`."""

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
        bool, typer.Option("--second-opinion", help="Compute the worst device's ε with Google's dp-accounting as well.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what a run guarantees under which assumptions, and write certificate.json and certificate.html.

    Example: airdistill certify runs/quick-ota_fd --devices
    """
    from airdistill.report.certificate import print_certificate, write_certificate
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
    scheme: Annotated[
        str | None, typer.Option("--scheme", metavar="NAME", help="For a scenario; by default airdistill.")
    ] = None,
    changes: SetOption = None,
    audited: Annotated[int, typer.Option("--audited-device", help="The device whose data is replaced.")] = 0,
    rounds: Annotated[int | None, typer.Option("--rounds", help="Rounds to audit; by default 50 at most.")] = None,
    transcripts: Annotated[int, typer.Option("--transcripts", help="Independent transcripts of broadcasts.")] = 20,
    candidates: Annotated[int, typer.Option("--candidates", help="Records to try; the worst one is audited.")] = 12,
    trials: Annotated[int, typer.Option("--trials", help="Trials with drawn noise, for each neighbour.")] = 1000,
    shadows: Annotated[
        int, typer.Option("--shadows", help="Shadow fleets of membership and label inference; an even number.")
    ] = 8,
    shadow_devices: Annotated[int, typer.Option("--shadow-devices", help="Most devices in a shadow fleet.")] = 10,
    parts: Annotated[
        str, typer.Option("--parts", metavar="A,B", help="The attacks to run.")
    ] = "exact,empirical,membership,labels",
    seed: Annotated[int, typer.Option("--seed", help="Seed of the attacks.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="By default the run's folder, or a new one under audits/."),
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", help="cpu, cuda or auto; by default that of the run.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Attack what the server observes, and compare with the certificate; exit code 1 if it is violated.

    Example: airdistill audit runs/quick-ota_fd --rounds 10
    """
    from airdistill.audit import AuditOptions, audit
    from airdistill.audit.auditing import subject_of
    from airdistill.report.audit import print_audit, write_audit
    from airdistill.report.progress import stage_bar
    from airdistill.report.terminal import Terminal
    from airdistill.runs.accounts import check_not_anothers

    chosen = tuple(part.strip() for part in parts.split(","))
    options = AuditOptions(audited, rounds, transcripts, candidates, trials, shadows, shadow_devices, seed, chosen)
    found = subject_of(subject, scheme, changes, device)
    folder = out or found.folder or Path("audits") / f"{found.plan.scenario.name}-{found.scheme.name}"
    check_not_anothers(folder, found.folder)
    with stage_bar(Terminal(stderr=True)) as report_stage:
        measured = audit(found.plan, found.scheme, options, found.run_options, report_stage)
    page = write_audit(measured, folder, found.folder)
    if as_json:
        print_json(measured.to_dict())
    else:
        print_audit(measured, Terminal())
        print_text(f"Audit: {page}")
    if measured.violations:
        sys.exit(1)
