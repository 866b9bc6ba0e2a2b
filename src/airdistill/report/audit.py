"""An audit as rows, on the terminal, as figures and as one page."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape

from airdistill import __version__
from airdistill.audit.auditing import Audit
from airdistill.audit.empirical import TESTED_MU, EmpiricalAudit
from airdistill.audit.exact import ExactAudit, PairAudit
from airdistill.audit.labels import LabelAudit
from airdistill.audit.membership import LEVEL, Interval, MembershipAudit
from airdistill.audit.recorded import RecordedAudit
from airdistill.files import write_whole
from airdistill.report.audit_figures import NAMES, draw_attack, draw_membership, draw_mu, draw_shifts, named
from airdistill.report.certificate import write_certificate
from airdistill.report.drawing import svg_of
from airdistill.report.page import Block, Bullets, DataTable, Drawing, Facts, Page, Paragraph, Section, render
from airdistill.report.run import write_run_page
from airdistill.report.terminal import bullets, facts_table, number_table
from airdistill.report.wording import number
from airdistill.runs.accounts import certify, note_audit
from airdistill.runs.folder import AUDIT, SUMMARY, write_json
from airdistill.runs.record import RunRecord

Row = tuple[str, ...]
_INTERVALS = f"Brackets are {100 * LEVEL:g} % intervals."
_RECORDED_COLUMNS = ("of the run's folder", "recorded", "by the plan")
_EMPIRICAL_COLUMNS = ("statistic", "measured", "expected")
_MEMBERSHIP_COLUMNS = ("statistic", "measured", "allowed")


# The terminal.


def print_audit(audit: Audit, console: Console) -> None:
    """Print the target of the audit, the measurements of each attack, the assumptions and the verdict."""
    facts = facts_table((label, escape(text)) for label, text in _target_rows(audit))
    console.print("[bold]Audit[/bold]", facts, "", sep="\n", highlight=False)
    if audit.recorded is not None:
        console.print("[bold]What was recorded[/bold]")
        console.print(number_table(_RECORDED_COLUMNS, _recorded_rows(audit.recorded)))
        console.print(bullets(_recorded_lines(), "·"))
    if audit.exact is not None:
        console.print("[bold]Exact loss along transcripts[/bold]")
        console.print(number_table(_pair_columns(audit.exact), _pair_rows(audit.exact)))
        console.print(bullets(_exact_lines(audit.exact), "·"))
    if audit.empirical is not None:
        trials = f"{audit.empirical.num_trials} trials with each dataset"
        console.print(f"[bold]Attack on drawn noise[/bold], {trials}")
        console.print(number_table(_EMPIRICAL_COLUMNS, _empirical_rows(audit.empirical)))
    if audit.membership is not None:
        console.print(f"[bold]{_membership_title(audit.membership)}[/bold]")
        console.print(number_table(_MEMBERSHIP_COLUMNS, _membership_rows(audit.membership)))
        console.print(bullets([_membership_line(audit.membership)], "·"))
    if audit.labels is not None:
        console.print("[bold]Inference of the device's label distribution[/bold]")
        console.print(number_table(_label_columns(audit.labels), _label_rows(audit.labels)))
        console.print(bullets(_label_lines(audit.labels), "·"))
    if (audit.empirical, audit.membership, audit.labels) != (None, None, None):
        console.print(_INTERVALS, highlight=False)
    console.print("[bold]Assumptions[/bold]", bullets(_all_notes(audit), "·"))
    if audit.violations:
        console.print("[bold red]Verdict: violated[/bold red]", bullets(audit.violations, "[red]✗[/red]"))
    else:
        console.print("[bold green]Verdict: not violated[/bold green] by these attacks")


# Rows and lines.


def _target_rows(audit: Audit) -> list[tuple[str, str]]:
    return [
        ("Scheme", f"{audit.scheme} on {audit.name}, device {audit.device}"),
        ("Rounds", f"{audit.num_rounds} of {audit.planned_rounds}"),
        ("Guarantee", f"ε {number(audit.epsilon)} at δ {number(audit.delta)} after these rounds"),
        ("Conditions", f"sensitivity {audit.sensitivity}, trust {audit.trust}"),
    ]


def _interval(found: Interval, digits: int = 3) -> str:
    return f"{found.value:.{digits}f} [{found.low:.{digits}f}, {found.high:.{digits}f}]"


def _share(found: Interval) -> str:
    return f"{found.value:.2%} [{found.low:.2%}, {found.high:.2%}]"


def _recorded_rows(found: RecordedAudit) -> list[Row]:
    """Return what the folder of a run shows, and what its plan and independent noise would show."""
    stated = "" if found.recorded_epsilon is None else number(found.recorded_epsilon, ".6g")
    rows: list[Row] = [
        ("ledger entries, recomputed", str(found.num_releases), ""),
        ("rounds whose noise was drawn again", str(found.num_redrawn), ""),
        ("rounds with received class means", str(found.num_tables), ""),
        ("ε of the worst device", stated, number(found.epsilon, ".6g")),
    ]
    if found.variance is not None:
        rows += [
            ("noise variance over the design's", _interval(found.variance.pooled), "1"),
            (f"  of the lowest row (round {found.variance.lowest_round})", _interval(found.variance.lowest_row), "1"),
        ]
    names = {"rounds": "largest correlation, rounds", "rows": "largest correlation, rows"}
    names["worst direction"] = "likelihood ratio along the worst pair"
    for name, each in found.correlations.items():
        label = names.get(name, f"largest correlation, {name}")
        rows.append((label, f"{each.value:.3f}", f"< {each.limit:.3f}"))
    return rows


def _recorded_lines() -> list[str]:
    return [f"All these tests together raise a false alarm with a probability of {1 - LEVEL:.1%} at most."]


def _pair_columns(exact: ExactAudit) -> Row:
    return ("after the last round", *map(named, exact.pairs))


def _pair_rows(exact: ExactAudit) -> list[Row]:
    """Return the exact measurements, a column for each pair. Ratios are the largest over rounds."""
    columns = [_pair_column(exact, pair) for pair in exact.pairs]
    return [(label, *(column[label] for column in columns)) for label in columns[0]]


def _pair_column(exact: ExactAudit, pair: PairAudit) -> dict[str, str]:
    mu, shift = pair.mu[:, -1], pair.shift
    ratios = {
        f"  times {name}": f"{number(ratio.min(axis=0).max())} to {number(ratio.max())}"
        for name, ratio in pair.ratios.items()
    }
    return {
        "μ, smallest to largest": f"{number(mu.min())} to {number(mu.max())}",
        "  certified μ": number(exact.guarantee.mu[-1]) if pair.compared else "none for such pairs",
        "ε, estimated lower bound": number(pair.epsilon(exact.guarantee.delta)[-1]),
        "  certified ε": number(exact.guarantee.epsilon[-1]) if pair.compared else "none for such pairs",
        "largest shift of a row": number(shift.max()),
        **ratios,
    }


def _exact_lines(exact: ExactAudit) -> list[str]:
    """Describe the pairs of the table."""
    return [
        f"Worst of {exact.num_candidates} records tried: {exact.pairs[0].description}.",
        f"Worst of 2 whole devices tried: {exact.pairs[1].description}.",
        *(f"Constructed, {NAMES[pair.relation]}: {pair.description}." for pair in exact.pairs if pair.constructed),
        f"Ranges are over {exact.num_transcripts} fresh transcripts; all of them reached the lower end of a ratio.",
    ]


def _empirical_rows(found: EmpiricalAudit) -> list[Row]:
    """Return each statistic, its measurement, and its expectation for the counted noise."""
    return [
        (f"AUC of the pair, μ = {number(found.mu)}", _interval(found.auc), f"{found.expected_auc:.3f}"),
        (f"AUC moved to μ = {TESTED_MU:g}", _interval(found.tested_auc), f"{found.expected_tested_auc:.3f}"),
        ("noise variance over counted", _interval(found.variance), "1"),
        (f"  of the lowest row (round {found.lowest_row_round})", _interval(found.lowest_row), "1"),
        *(
            (f"largest correlation, {between}", f"{measured.value:.3f}", f"< {measured.limit:.3f}")
            for between, measured in found.correlations.items()
        ),
    ]


def _membership_rows(found: MembershipAudit) -> list[Row]:
    """Return each statistic, its measurement, and the limit that the certificate sets."""
    rates = [
        (f"TPR at {point.asked:.1%} FPR", _share(point.true_positive), f"{found.allowed(point):.2%}")
        for point in found.points
    ]
    rows: list[Row] = [("AUC", _interval(found.auc), f"{found.allowed_auc:.3f}"), *rates]
    if found.one_device is None:
        return rows
    return [*rows, *((f"{name}, one device", *rest) for name, *rest in _membership_rows(found.one_device))]


def _membership_title(found: MembershipAudit) -> str:
    seen = "the broadcasts" if found.one_device is None else "answers on the public set"
    return f"Membership inference from {seen}"


def _membership_line(found: MembershipAudit) -> str:
    fleets = f"{found.num_shadows} shadow fleets of {found.num_shadow_devices} devices"
    line = (
        f"{found.num_members} members and {found.num_non_members} non-members, scored with {fleets}; "
        f"ε {number(found.epsilon)} is that of the device with the weakest guarantee."
    )
    one = found.one_device
    if one is None:
        return line
    return (
        f"The sum of all devices: {line} One device: an attacker who knows the other devices' answers scores its "
        f"{one.num_members} records and {one.num_non_members} others with {one.num_shadows} shadows of the device."
    )


def _label_columns(found: LabelAudit) -> Row:
    return ("an attacker who", *(attack.attacker for attack in found.attacks), "allowed")


def _label_rows(found: LabelAudit) -> list[Row]:
    """Return each statistic, a column for each attacker, and the limit that the certificate sets."""
    guess = f"{found.distance_of_guess:.3f}"
    return [
        ("AUC", *(_interval(attack.auc) for attack in found.attacks), f"{found.allowed_auc:.3f}"),
        ("advantage", *(_interval(attack.advantage) for attack in found.attacks), f"{found.allowed_advantage:.3f}"),
        ("error of class shares", *(f"{attack.distance:.3f}" for attack in found.attacks), ""),
        ("  without noise", *(f"{attack.distance_without_noise:.3f}" for attack in found.attacks), ""),
        ("  of a guess", *(guess for _ in found.attacks), ""),
    ]


def _label_lines(found: LabelAudit) -> list[str]:
    shares = [", ".join(f"{share:.0%} of class {klass}" for klass, share in enumerate(each) if share > 0.005)
              for each in found.shares]  # fmt: skip
    return [
        f"The device holds {shares[0]}; the test is against {shares[1]}.",
        "The advantage is true minus false positive rate; the error is the total variation distance between the "
        "class shares and their estimate.",
        f"{found.num_trials} trials with each of the two datasets, rounds: {found.num_rounds}, shadow devices: "
        f"{found.num_shadows}. The whole-device guarantee covers labels if the limit on answers does not depend on "
        "them.",
    ]


def _all_notes(audit: Audit) -> list[str]:
    recorded = () if audit.recorded is None else audit.recorded.notes
    return [*recorded, *audit.notes, *(audit.membership.notes if audit.membership is not None else ())]


# Figures.


# The page.


def add_to_run(audit: Audit, run: Path) -> None:
    """Add an audit to the certificate and the report of its run."""
    note_audit(run, audit.to_dict())
    write_certificate(certify(run), run)
    if (run / SUMMARY).exists():
        write_run_page(RunRecord.read(run))


def write_audit(audit: Audit, folder: Path) -> Path:
    """Write `audit.json` and `audit.html` to the folder, and return the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / AUDIT, audit.to_dict())
    return write_audit_page(audit, folder / "audit.html")


def write_audit_page(audit: Audit, path: Path) -> Path:
    """Write the page, and return its path."""
    write_whole(path, render(audit_page(audit)).encode())
    return path


def audit_page(audit: Audit) -> Page:
    """Return the verdict and the results of the attacks that were made."""
    verdict = "violated" if audit.violations else "not violated"
    sections = [Section(f"Verdict: {verdict}", _verdict_blocks(audit))]
    if audit.recorded is not None:
        sections.append(_recorded_section(audit.recorded))
    if audit.exact is not None:
        sections.append(_exact_section(audit.exact))
    if audit.empirical is not None:
        sections.append(_empirical_section(audit.empirical))
    if audit.membership is not None:
        sections.append(_membership_section(audit.membership))
    if audit.labels is not None:
        sections.append(_labels_section(audit.labels))
    sections.append(Section("Assumptions", (Bullets(tuple(_all_notes(audit))),)))
    return Page(
        title=f"Audit of {audit.name}, {audit.scheme}",
        subtitle=f"Device {audit.device}, {audit.num_rounds} of {audit.planned_rounds} rounds, seed {audit.seed}",
        sections=tuple(sections),
        made_by=f"airdistill {__version__}",
    )


def _verdict_blocks(audit: Audit) -> tuple[Block, ...]:
    facts = Facts(tuple(_target_rows(audit)))
    if audit.violations:
        return facts, Bullets(audit.violations, "warning")
    return facts, Paragraph("No attack violated a guarantee. This does not prove that none can.")


def _recorded_section(found: RecordedAudit) -> Section:
    text = (
        "The run's own ledger and records, compared with an independent recomputation from its plan: every charge, the "
        "strength of the noise that was recorded, the noise itself where it was seeded, and the class means received."
    )
    table = DataTable(_RECORDED_COLUMNS, tuple(_recorded_rows(found)), notes=tuple(_recorded_lines()))
    return Section("What was recorded", (Paragraph(text), table))


def _exact_section(exact: ExactAudit) -> Section:
    text = (
        "One device is trained on its own data D and on a neighbouring dataset D', with the same broadcasts. The "
        "distance between the two payloads, in standard deviations of the counted noise, is the exact loss μ of the "
        "transcript. The smallest μ over transcripts gives an estimate of a lower bound on the true ε."
    )
    table = DataTable(_pair_columns(exact), tuple(_pair_rows(exact)), notes=tuple(_exact_lines(exact)))
    over = f"median and range over {exact.num_transcripts} transcripts"
    shifts = Drawing(
        svg_of(draw_shifts(exact)),
        f"Largest shift of a row, {over}; the line of a bound is that of its largest row.",
        "Shift by round against its bounds",
    )
    mu = Drawing(svg_of(draw_mu(exact)), f"Measured μ, {over}, and the certified one.", "Measured and certified mu")
    return Section("Exact loss along transcripts", (Paragraph(text), table, shifts, mu))


def _empirical_section(found: EmpiricalAudit) -> Section:
    text = (
        f"The likelihood-ratio test on noise that was really drawn, {found.num_trials} trials with each dataset over "
        f"{found.num_rounds} rounds, with {found.pair}. The pair is also moved along its own line to μ = 1.5, where "
        "the test is most sensitive to noise that differs from the counted noise."
    )
    table = DataTable(_EMPIRICAL_COLUMNS, tuple(_empirical_rows(found)), notes=(_INTERVALS,))
    drawing = Drawing(svg_of(draw_attack(found)), "ROC of the unmoved pair.", "ROC of the likelihood-ratio attack")
    return Section("Attack on drawn noise", (Paragraph(text), table, drawing))


def _membership_section(found: MembershipAudit) -> Section:
    note = f"{_INTERVALS} DeLong's for the AUC, Clopper and Pearson's for rates."
    table = DataTable(_MEMBERSHIP_COLUMNS, tuple(_membership_rows(found)), notes=(note,))
    caption = "ROC of membership inference; rates below one record are drawn at half a record."
    drawing = Drawing(svg_of(draw_membership(found)), caption, "ROC of membership inference on log axes")
    return Section(_membership_title(found), (Paragraph(_membership_line(found)), table, drawing))


def _labels_section(found: LabelAudit) -> Section:
    text = (
        "A model answers with the classes that it was trained on. Two attackers, prepared with shadow devices, test "
        "whether the device holds its own label distribution or another one, and estimate its class shares."
    )
    table = DataTable(_label_columns(found), tuple(_label_rows(found)), notes=(_INTERVALS, *_label_lines(found)))
    return Section("Inference of the device's label distribution", (Paragraph(text), table))
