import os
import re
import subprocess
import sys
from pathlib import Path

KILLS = Path(__file__).parents[2] / "benchmarks" / "kills.py"


def test_random_kills_lose_nothing():
    """In a process of its own: it forks, and must not have the threads of this one."""
    done = subprocess.run(
        [sys.executable, KILLS, "--kills", "12", "--seed", "5"],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^1[2-9] kills: ", done.stdout, re.MULTILINE)
    seen = re.search(r"(\d+) commands ran to their end, (\d+) transmissions were seen", done.stdout)
    assert all(int(number) >= 12 for number in seen.groups())
