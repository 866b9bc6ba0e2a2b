"""The demonstration of `make run`: plan the `quick` fleet, train it with three schemes, and compare.

Run it with `python examples/demonstration.py [ROUNDS]`; the records lie under runs/ afterwards.
"""

import sys

from rich.console import Console

import airdistill as ad
from airdistill.report.plan_table import print_plan
from airdistill.report.progress import print_comparison, round_bar
from airdistill.runs.options import RunOptions

SCHEMES = ["ota_fd", "fd_error_free", "local_only"]


def main(rounds: int | None) -> None:
    console, scenario = Console(), ad.load("quick")
    print_plan(ad.plan(scenario), console)
    records = []
    for scheme in SCHEMES:
        with round_bar(console, scheme) as on_round:
            records.append(ad.run(scenario, scheme, rounds, options=RunOptions(eval_every=30), on_round=on_round))
    console.print(f"\n[bold]{scenario.name}[/bold] after {records[0].summary['rounds']} rounds")
    print_comparison(records, console)
    console.print("Records: " + ", ".join(str(record.folder) for record in records))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else None)
