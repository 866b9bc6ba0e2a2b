"""Figure 2(b) from end to end, on a fleet small enough to train in seconds."""

import json
import shutil

from in_process import exit_code, runs_in_this_process

SMALL = [
    "fleet.devices=2", "data.samples_per_device=20", "learning.model=softmax_regression", "learning.max_rounds=2",
    "learning.fixed_rounds=3",
]  # fmt: skip


def test_both_steps_train_and_draw_and_a_second_call_trains_only_what_is_missing(tmp_path, few_digits, capsys):
    changes = [word for change in [*SMALL, f"data.dataset={few_digits}"] for word in ("--set", change)]
    command = [
        "reproduce",
        "fig2b",
        "--scenarios",
        "paper",
        "--out",
        tmp_path,
        "--eval-every",
        "50",
        "--json",
        *changes,
    ]
    with runs_in_this_process():
        assert exit_code(*command) == 0
    said = capsys.readouterr().out
    claims = json.loads(said)
    assert set(claims) == {"paper-printed", "paper-tuned"}
    assert len(claims["paper-tuned"]) == len(claims["paper-printed"]) + 2
    assert {claim["verdict"] for claim in claims["paper-printed"]} <= {"holds", "does not hold", "undecided"}
    for name in ("fig2b-paper.png", "fig2b-paper.svg", "fig2b-paper-tuned.csv", "fig2b.html", "fig2b-claims.json"):
        assert (tmp_path / name).stat().st_size > 0
    assert (tmp_path / "fig2b.html").read_text().count("<svg") == 2
    summaries = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*/*/summary.json")}
    assert len(summaries) == 20
    # No run is long enough for an evaluation every 50 rounds; all are evaluated at the proposed scheme's last round.
    ends = {json.loads(path.read_text())["rounds"] for path in tmp_path.glob("*/ota_fd/*/summary.json")}
    lost = tmp_path / "paper-printed" / "local_only" / "seed-0"
    rounds = (lost / "rounds.jsonl").read_bytes()
    records = [json.loads(line) for line in rounds.splitlines()]
    assert ends <= {record["round"] for record in records if "accuracy" in record}
    assert exit_code(*command, "--redraw") == 0
    assert capsys.readouterr().out == said
    # One run is deleted: that run is trained again, and no other.
    shutil.rmtree(lost)
    with runs_in_this_process():
        assert exit_code(*command) == 0
    assert capsys.readouterr().out == said
    assert (lost / "rounds.jsonl").read_bytes() == rounds
    changed = {path for path, time in summaries.items() if path.stat().st_mtime_ns != time}
    assert changed == {lost / "summary.json"}
