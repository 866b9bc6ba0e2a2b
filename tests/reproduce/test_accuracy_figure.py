"""Figure 2(b) from end to end, on a fleet small enough to train in seconds."""

import json
import subprocess
import sys

SMALL = [
    "fleet.devices=2", "data.samples_per_device=20", "learning.model=softmax_regression", "learning.max_rounds=2",
    "learning.fixed_rounds=3",
]  # fmt: skip


def test_both_steps_run_draw_and_judge_and_a_second_call_trains_nothing(tmp_path):
    changes = [word for change in SMALL for word in ("--set", change)]
    command = ["reproduce", "fig2b", "--scenarios", "paper", "--out", str(tmp_path), "--eval-every", "50", "--json"]
    call = [sys.executable, "-m", "airdistill", *command, *changes]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    claims = json.loads(done.stdout)
    assert set(claims) == {"paper-printed", "paper-tuned"}
    assert len(claims["paper-tuned"]) == len(claims["paper-printed"]) + 2
    assert {claim["verdict"] for claim in claims["paper-printed"]} <= {"holds", "does not hold", "undecided"}
    for name in ("fig2b-paper.png", "fig2b-paper.svg", "fig2b-paper-tuned.csv", "fig2b.html", "fig2b-claims.json"):
        assert (tmp_path / name).stat().st_size > 0
    assert (tmp_path / "fig2b.html").read_text().count("<svg") == 2
    summaries = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*/*/summary.json")}
    assert len(summaries) == 18
    # Nobody is evaluated every 50 rounds, but everybody after the last round of the proposed scheme.
    ends = {json.loads(path.read_text())["rounds"] for path in tmp_path.glob("*/ota_fd/*/summary.json")}
    lines = (tmp_path / "paper-printed" / "local_only" / "seed-0" / "rounds.jsonl").read_text().splitlines()
    assert ends <= {json.loads(line)["round"] for line in lines if "accuracy" in json.loads(line)}
    redrawn = subprocess.run([*call, "--redraw"], capture_output=True, text=True, check=True)
    assert redrawn.stdout == done.stdout
    again = subprocess.run(call, capture_output=True, text=True, check=True)
    assert again.stdout == done.stdout
    assert summaries == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*/*/summary.json")}
