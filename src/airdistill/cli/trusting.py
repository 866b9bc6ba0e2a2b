"""Commands about the privacy of a run: `certify`, `verify` and `audit`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from airdistill.cli.app import JsonOption, SetOption, app, print_json, print_text, print_warnings
from airdistill.errors import AirDistillError

if TYPE_CHECKING:
    from airdistill.audit import Audit
    from airdistill.privacy.certificate import Certificate


@app.command("certify")
def certify_command(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    devices: Annotated[bool, typer.Option("--devices", help="List every device.")] = False,
    second_opinion: Annotated[
        bool, typer.Option("--second-opinion", help="Compute the worst device's ε with Google's dp-accounting as well.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Where to write; by default the run's folder.")
    ] = None,
    sign: Annotated[
        Path | None, typer.Option("--sign", metavar="KEY", help="Sign with this Ed25519 private key, in PEM form.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a run guarantees under which assumptions, and write certificate.json and certificate.html.

    Example: airdistill certify runs/quick-ota_fd --devices
    """
    from airdistill.privacy.signature import date_of_issue, read_private_key, signed
    from airdistill.report.certificate import print_certificate
    from airdistill.report.terminal import Terminal
    from airdistill.runs.accounts import certify, check_not_anothers
    from airdistill.runs.record import damage_in

    check_not_anothers(out or folder, folder)
    key = None if sign is None else read_private_key(sign)
    certificate = certify(folder, date_of_issue())
    print_warnings(damage_in(folder))  # the certificate itself is made from the ledger alone
    stored = certificate.to_dict() if key is None else signed(certificate.to_dict(), key)
    if as_json:
        print_json(stored)
    else:
        print_certificate(certificate, Terminal(), devices)
    if second_opinion and not as_json:
        from airdistill.audit.second_opinion import opinion_in_words

        print_text(opinion_in_words(folder))
    page = _written(certificate, stored, folder, out, must_write=sign is not None)
    if page is not None and not as_json:
        print_text(f"Certificate: {page}")


def _written(
    certificate: Certificate, stored: dict[str, Any], folder: Path, out: Path | None, must_write: bool
) -> Path | None:
    """Write a certificate that was printed. A run's folder may be read-only: say so, unless the file was asked for."""
    from airdistill.report.certificate import write_certificate

    try:
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
        return write_certificate(certificate, out or folder, stored)
    except OSError as error:
        reason = f"{out or folder}: cannot be written: {error.strerror}; choose another folder with --out DIR"
        if out is not None or must_write:
            raise AirDistillError(reason) from None
        typer.echo(f"note: {reason}", err=True)
        return None


@app.command("verify")
def verify_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A signed certificate.json.")],
    key: Annotated[Path, typer.Option("--key", metavar="PUB", help="The signer's Ed25519 public key, in PEM form.")],
    ledger: Annotated[
        Path | None,
        typer.Option("--ledger", metavar="FILE", help="The ledger that the certificate is of, to recompute it."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Verify a certificate from files alone: its signature, and with its ledger every number, verdict and sentence.

    The exit code is 0 if it is verified and 1 if not.

    Example: airdistill verify certificate.json --key public.pem --ledger ledger.jsonl
    """
    from airdistill.privacy.signature import (
        NotVerified,
        check_against_ledger,
        check_signature,
        read_certificate,
        read_public_key,
    )

    public, stored, problem = read_public_key(key), read_certificate(file), None
    try:
        check_signature(stored, public)
        if ledger is not None:
            check_against_ledger(stored, ledger)
    except NotVerified as reason:
        problem = str(reason)
    if as_json:
        checked = ["signature", *(["ledger"] if ledger is not None else [])]
        print_json({"verified": problem is None, "problem": problem, "checked": checked})
    else:
        print_text("\n".join(_verification_in_words(stored, problem, ledger)))
    if problem is not None:
        sys.exit(1)


def _verification_in_words(stored: dict[str, Any], problem: str | None, ledger: Path | None) -> list[str]:
    """Return what was verified and what it says, or why it is not verified."""
    if problem is not None:
        return [f"Not verified: {problem}"]
    recomputed = f"its {stored['ledger_lines']} lines give the same numbers, verdict and sentences"
    return [
        f"Verified: {stored['headline']}",
        f"Verdict: {stored['verdict_in_words']}",
        f"Signature: valid, issued {stored['issued']}, by key {stored['signature']['key']}",
        f"Ledger: {recomputed if ledger is not None else 'not given, and so nothing was recomputed'}",
    ]


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
        str, typer.Option("--parts", metavar="A,B", help="The parts to run; recorded reads a run's own folder.")
    ] = "recorded,exact,empirical,membership,labels",
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
    """Check what a run recorded, attack what the server observes, and compare with the certificate; exit code 1 if it
    is violated.

    Example: airdistill audit runs/quick-ota_fd --rounds 10
    """
    from airdistill.audit import AuditOptions, audit
    from airdistill.audit.auditing import subject_of
    from airdistill.errors import InputError
    from airdistill.report.audit import print_audit
    from airdistill.report.progress import stage_bar
    from airdistill.report.terminal import Terminal
    from airdistill.runs.accounts import check_not_anothers

    chosen = tuple(part.strip() for part in parts.split(","))
    options = AuditOptions(audited, rounds, transcripts, candidates, trials, shadows, shadow_devices, seed, chosen)
    found = subject_of(subject, scheme, changes, device)
    folder = out or found.folder or Path("audits") / f"{found.plan.scenario.name}-{found.scheme.name}"
    if folder.exists() and not folder.is_dir():
        raise InputError("--out", str(folder), "is a file; name a folder")
    check_not_anothers(folder, found.folder)
    with stage_bar(Terminal(stderr=True)) as report_stage:
        measured = audit(found.plan, found.scheme, options, found.run_options, report_stage, folder=found.folder)
    if as_json:
        print_json(measured.to_dict())
    else:
        print_audit(measured, Terminal())
    page = _save_audit(measured, folder, found.folder)
    if page is not None and not as_json:
        print_text(f"Audit: {page}")
    if measured.violations:
        sys.exit(1)


def _save_audit(measured: Audit, folder: Path, run: Path | None) -> Path | None:
    """Save an audit that was printed, and return its page. A folder may be read-only: say so in one line."""
    from airdistill.report.audit import add_to_run, write_audit

    failed: dict[Path, str] = {}
    page = None
    try:
        if run is not None:
            add_to_run(measured, run)
    except OSError as error:
        failed[run or folder] = error.strerror or str(error)
    try:
        page = write_audit(measured, folder)
    except OSError as error:
        failed[folder] = error.strerror or str(error)
    for place, reason in failed.items():
        typer.echo(f"note: {place}: the audit could not be saved there: {reason}; use --out DIR for another", err=True)
    return page
