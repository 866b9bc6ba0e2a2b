"""An audit as one page."""

from __future__ import annotations

from pathlib import Path

from airdistill import __version__
from airdistill.audit.auditing import Audit
from airdistill.audit.empirical import EmpiricalAudit
from airdistill.audit.exact import ExactAudit
from airdistill.audit.membership import MembershipAudit
from airdistill.files import write_whole
from airdistill.report import audit_words as words
from airdistill.report.audit_figures import draw_attack, draw_membership, draw_mu, draw_shifts
from airdistill.report.certificate_page import write_certificate
from airdistill.report.drawing import svg_of
from airdistill.report.page import Block, Bullets, DataTable, Drawing, Facts, Page, Paragraph, Section, render
from airdistill.report.run_page import write_run_page
from airdistill.runs.accounts import certify, note_audit
from airdistill.runs.folder import AUDIT, SUMMARY, write_json
from airdistill.runs.record import RunRecord


def write_audit(audit: Audit, folder: Path, run: Path | None) -> Path:
    """`audit.json` and `audit.html` in that folder; certificate and report of the run that was audited take note."""
    if run is not None:
        note_audit(run, audit.to_dict())
        write_certificate(certify(run), run)
        if (run / SUMMARY).exists():
            write_run_page(RunRecord.read(run))
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / AUDIT, audit.to_dict())
    return write_audit_page(audit, folder / "audit.html")


def write_audit_page(audit: Audit, path: Path) -> Path:
    """The page at that path."""
    write_whole(path, render(audit_page(audit)).encode())
    return path


def audit_page(audit: Audit) -> Page:
    sections = [Section(f"Verdict: {words.verdict(audit)}", _verdict_blocks(audit))]
    if audit.exact is not None:
        sections.append(_exact_section(audit.exact))
    if audit.empirical is not None:
        sections.append(_empirical_section(audit.empirical))
    if audit.membership is not None:
        sections.append(_membership_section(audit.membership))
    sections.append(Section("This rests on", (Bullets(tuple(words.all_notes(audit))),)))
    return Page(
        title=f"Audit of {audit.name}, {audit.scheme}",
        subtitle=f"Device {audit.device}, {audit.num_rounds} of {audit.planned_rounds} rounds, seed {audit.seed}",
        sections=tuple(sections),
        made_by=f"airdistill {__version__}",
    )


def _verdict_blocks(audit: Audit) -> tuple[Block, ...]:
    facts = Facts(tuple((label, text) for label, text in words.what_was_attacked(audit)))
    if audit.violations:
        return facts, Bullets(audit.violations, "warning")
    return facts, Paragraph("No promise was seen broken; an attack that finds nothing proves nothing.")


def _exact_section(exact: ExactAudit) -> Section:
    text = (
        "One device is trained on its own data D and on a neighbour D', on the same broadcasts. The distance between "
        "what the two send, held against the counted noise, is exactly what the transcript gave away: μ. The smallest "
        "over transcripts gives an estimate of a lower bound on the true ε."
    )
    table = DataTable(words.pair_columns(exact), tuple(words.pair_rows(exact)), notes=tuple(words.exact_lines(exact)))
    over = f"median and range over {exact.num_transcripts} transcripts"
    shifts = Drawing(
        svg_of(draw_shifts(exact)),
        f"Shift of the most moved row, {over}; a bound's line is that of its widest row.",
        "Shift by round against its bounds",
    )
    mu = Drawing(svg_of(draw_mu(exact)), f"Measured μ, {over}, and the certified one.", "Measured and certified mu")
    return Section("Exact loss along transcripts", (Paragraph(text), table, shifts, mu))


def _empirical_section(found: EmpiricalAudit) -> Section:
    text = (
        f"The likelihood-ratio test on noise that was really drawn, {found.num_trials} trials in each world over "
        f"{found.num_rounds} rounds, with {found.pair}. Moved along its own line to μ = 1.5, the pair shows best "
        "whether the noise is what was counted."
    )
    columns = ("statistic", "measured", "if as counted")
    table = DataTable(columns, tuple(words.empirical_rows(found)), notes=(words.INTERVALS,))
    drawing = Drawing(svg_of(draw_attack(found)), "ROC of the pair as it is.", "ROC of the likelihood-ratio attack")
    return Section("Attack on drawn noise", (Paragraph(text), table, drawing))


def _membership_section(found: MembershipAudit) -> Section:
    columns = ("statistic", "measured", "allowed")
    note = f"{words.INTERVALS} DeLong's for the AUC, Clopper and Pearson's for rates."
    table = DataTable(columns, tuple(words.membership_rows(found)), notes=(note,))
    caption = "ROC of membership inference; rates below one record's share stand at half of it."
    drawing = Drawing(svg_of(draw_membership(found)), caption, "ROC of membership inference on log axes")
    return Section(
        "Membership inference from the broadcasts", (Paragraph(words.membership_line(found)), table, drawing)
    )
