"""What an audit found, in rows and lines: the same on the terminal and on a page."""

from __future__ import annotations

from airdistill.audit.auditing import Audit
from airdistill.audit.empirical import TESTED_MU, EmpiricalAudit
from airdistill.audit.exact import ExactAudit, PairAudit
from airdistill.audit.membership import LEVEL, Interval, MembershipAudit
from airdistill.report.words import number

Row = tuple[str, ...]
INTERVALS = f"Brackets are {100 * LEVEL:g} % intervals."


def what_was_attacked(audit: Audit) -> list[Row]:
    """Label and value."""
    return [
        ("Scheme", f"{audit.scheme} on {audit.name}, device {audit.device}"),
        ("Rounds", f"{audit.num_rounds} of {audit.planned_rounds}"),
        ("Promise", f"ε {number(audit.epsilon)} at δ {number(audit.delta)} after these rounds"),
        ("It counts", f"sensitivity {audit.sensitivity}, trust {audit.trust}"),
    ]


def verdict(audit: Audit) -> str:
    return "violated" if audit.violations else "not violated"


def interval(found: Interval, digits: int = 3) -> str:
    return f"{found.value:.{digits}f} [{found.low:.{digits}f}, {found.high:.{digits}f}]"


def share(found: Interval) -> str:
    return f"{found.value:.2%} [{found.low:.2%}, {found.high:.2%}]"


def pair_columns(exact: ExactAudit) -> Row:
    names = {"record": "one record", "device": "whole device"}
    return ("after the last round", *(names[pair.relation] for pair in exact.pairs))


def pair_rows(exact: ExactAudit) -> list[Row]:
    """What the exact part measured, a column for each pair; ratios are the largest over rounds."""
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
        "  certified μ": number(exact.promise.mu[-1]) if pair.compared else "none for such pairs",
        "ε, estimated lower bound": number(pair.epsilon(exact.promise.delta)[-1]),
        "  certified ε": number(exact.promise.epsilon[-1]) if pair.compared else "none for such pairs",
        "largest shift of a row": number(shift.max()),
        **ratios,
    }


def exact_lines(exact: ExactAudit) -> list[str]:
    """What the table's pairs are."""
    return [
        f"Worst of {exact.num_candidates} records tried: {exact.pairs[0].description}.",
        f"Worst of 2 whole devices tried: {exact.pairs[1].description}.",
        f"Ranges are over {exact.num_transcripts} fresh transcripts; a ratio's lower end held in every one of them.",
    ]


def empirical_rows(found: EmpiricalAudit) -> list[Row]:
    """Statistic, measured, and what counted noise would give."""
    return [
        (f"AUC of the pair, μ = {number(found.mu)}", interval(found.auc), f"{found.expected_auc:.3f}"),
        (f"AUC moved to μ = {TESTED_MU:g}", interval(found.tested_auc), f"{found.expected_tested_auc:.3f}"),
        ("noise variance over counted", interval(found.variance), "1"),
        (f"  of the lowest row (round {found.lowest_row_round})", interval(found.lowest_row), "1"),
        *(
            (f"largest correlation, {between}", f"{measured.value:.3f}", f"< {measured.limit:.3f}")
            for between, measured in found.correlations.items()
        ),
    ]


def membership_rows(found: MembershipAudit) -> list[Row]:
    """Statistic, measured, and what the certificate allows."""
    rates = [
        (f"TPR at {point.asked:.1%} FPR", share(point.true_positive), f"{found.allowed(point):.2%}")
        for point in found.points
    ]
    return [("AUC", interval(found.auc), ""), *rates]


def membership_line(found: MembershipAudit) -> str:
    fleets = f"{found.num_shadows} shadow fleets of {found.num_shadow_devices} devices"
    return (
        f"{found.num_members} members and {found.num_non_members} others, scored with {fleets}; "
        f"ε {number(found.epsilon)} is of the device that was promised least."
    )


def all_notes(audit: Audit) -> list[str]:
    return [*audit.notes, *(audit.membership.notes if audit.membership is not None else ())]
