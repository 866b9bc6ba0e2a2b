"""The cost of the ledger: milliseconds and bytes per round to charge it, and to read and certify it."""

import tempfile
import time
from pathlib import Path

import airdistill as ad
from airdistill.channel import channel_source
from airdistill.privacy.certificate import certificate_of
from airdistill.privacy.ledger import Ledger
from airdistill.runs.accounts import ledger_header

FLEETS = {
    "paper, 50 devices": ("paper", []),
    "quick, 20 devices": ("quick", []),
    "small-data, 1000 devices": ("small-data", ["fleet.devices=1000"]),
    "small-data, 5000 devices of 12 samples": ("small-data", ["fleet.devices=5000", "data.samples_per_device=12"]),
}


def measure(name: str, changes: list[str], num_rounds: int = 50) -> tuple[float, ...]:
    plan = ad.plan(ad.load(name, [*changes, f"learning.rounds={num_rounds}"]), "ota_fd")
    source = channel_source(plan.scenario)
    channels = [source.round_channel(t) for t in range(1, num_rounds + 1)]
    designs = [plan.design(channel, t) for t, channel in enumerate(channels, start=1)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.jsonl"
        ledger = Ledger.begin(ledger_header(plan, "ota_fd", "private"), path)
        started = time.perf_counter()
        for t, (channel, design) in enumerate(zip(channels, designs, strict=True), start=1):
            ledger.charge(plan.uplink.release(design, channel, t))
        charged = time.perf_counter()
        certificate_of(Ledger.read(path))
        certified = time.perf_counter()
        size = path.stat().st_size
    return 1e3 * (charged - started) / num_rounds, size / num_rounds / 1e3, 1e3 * (certified - charged) / num_rounds


def main() -> None:
    print(f"{'fleet':<40} {'ms to charge':>12} {'kB':>8} {'ms to certify':>14}   (per round)")
    for label, (name, changes) in FLEETS.items():
        charge, size, certify = measure(name, changes)
        print(f"{label:<40} {charge:>12.1f} {size:>8.1f} {certify:>14.2f}")


if __name__ == "__main__":
    main()
