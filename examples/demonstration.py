"""The demonstration of `make run`: plan the `quick` fleet, train it with eight schemes, certify and compare.

Run it with `python examples/demonstration.py [ROUNDS [FIELD=VALUE ...]]`. It stores records and report under runs/.
"""

import sys

from rich.console import Console

import airdistill as ad
from airdistill.report.certificate import print_certificate
from airdistill.report.comparison import print_comparison, write_comparison_page
from airdistill.report.plan import print_plan
from airdistill.report.progress import comparison_bar
from airdistill.runs.options import RunOptions

SCHEMES = ["airdistill", "ota_fd", "orthogonal_fd", "fd_error_free", "local_only", "ota_fl", "fedsgd", "fedavg"]


def main(rounds: int, changes: list[str]) -> None:
    console, scenario = Console(), ad.load("quick", changes)
    print_plan(ad.plan(scenario), console)
    with comparison_bar(console) as bar:
        options = RunOptions(eval_every=max(1, rounds // 2), checkpoint_every=rounds)
        record = ad.compare(scenario, SCHEMES, rounds=rounds, options=options, on_progress=bar)
    console.print()
    own = next(run for task, run in record.runs.items() if task.label == "airdistill")
    print_certificate(ad.certify(own.folder), console)
    print_comparison(record, console)
    console.print(f"Report: {write_comparison_page(record)}", highlight=False, markup=False)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 16, sys.argv[2:])
