"""Parts of a page that come from a plan."""

from __future__ import annotations

from airdistill.planning.plan import Plan
from airdistill.report.page import Block, Bullets, DataTable, Facts, Paragraph, Section
from airdistill.report.plan_table import fleet_in_words, privacy_rows, summary_rows


def plan_section(plan: Plan, of: str = "") -> Section:
    """What was planned, and what to beware of."""
    blocks: list[Block] = [
        Paragraph(f"{fleet_in_words(plan)}."),
        Facts(tuple((label.strip(), text) for label, text in summary_rows(plan))),
    ]
    if plan.warnings:
        blocks.append(Bullets(plan.warnings, "warning"))
    return Section(f"The plan{of}", tuple(blocks))


def privacy_section(plan: Plan, of: str = "") -> Section:
    """Every device's ε as planned, under each sensitivity model, and what all of it rests on."""
    columns, rows = privacy_rows(plan)
    table = DataTable(
        columns,
        rows,
        caption="Exact ε at each device's δ at the end, as planned; * is the model that the scenario declares.",
    )
    return Section(f"Planned privacy{of}", (table, Paragraph("This rests on:"), Bullets(plan.assumptions)))
