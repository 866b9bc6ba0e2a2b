"""The secure sum at the size of votes on a public set: time and bytes of a device and of the server.

    OMP_NUM_THREADS=1 python benchmarks/secure_sum.py [--devices 200] [--samples 3000] [--dropouts 20]

Times are CPU seconds of one core. All devices and the server run in one process, one after the other, with the very
messages that they exchange over Flower; a device's state is written to JSON and read again before each step, as in a
federation. Grid and modulus are those of `airdistill_proxy` on MNIST. As many devices as are planned for drop out after
they have sent their shares, the most expensive moment: the server must then remove their masks from every vector.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from airdistill.channel.sources import channel_source
from airdistill.flower.records import Record, as_text
from airdistill.flower.sums.device_side import DeviceSide
from airdistill.flower.sums.keys import Identity
from airdistill.flower.sums.messages import Roster, Terms, keys_in, keys_question, sum_terms
from airdistill.flower.sums.server_side import ServerSide
from airdistill.privacy.ledger import Ledger
from airdistill.radio.charged_round import charge_round
from airdistill.radio.discrete_noise import discrete_gaussian
from airdistill.radio.sum_grid import SumGrid
from airdistill.runs.accounts import ledger_header
from airdistill.scenario import load
from airdistill.schemes.planning import as_run_by, plan_scheme
from airdistill.schemes.registry import load_scheme

SCHEME = "airdistill_proxy"


class Meter:
    """CPU seconds and bytes of a device by step, and the server's seconds."""

    def __init__(self) -> None:
        self.device_s: dict[str, list[float]] = defaultdict(list)
        self.sent: dict[str, list[int]] = defaultdict(list)
        self.received: dict[str, list[int]] = defaultdict(list)
        self.server_s: dict[str, float] = defaultdict(float)

    def device(self, step: str, question: Record, answer: Callable[[], Record]) -> Record:
        began = time.process_time()
        made = answer()
        self.device_s[step].append(time.process_time() - began)
        self.sent[step].append(size_of(made))
        self.received[step].append(size_of(question))
        return made

    def server(self, step: str, work: Callable[[], Any]) -> Any:
        began = time.process_time()
        found = work()
        self.server_s[step] += time.process_time() - began
        return found

    def print(self) -> None:
        print(f"{'step':<10}{'device s':>10}{'bytes up':>12}{'bytes down':>12}{'server s':>10}")
        columns = self.device_s, self.sent, self.received
        means = {step: [float(np.mean(each[step])) for each in columns] for step in self.sent}
        for step, of_device in {**means, "sum": [0.0, 0.0, 0.0]}.items():
            print_row(step, of_device, self.server_s[step])
        print_row("all", np.sum(list(means.values()), axis=0).tolist(), sum(self.server_s.values()))


def print_row(step: str, of_device: list[float], server_s: float) -> None:
    seconds, up, down = of_device
    print(f"{step:<10}{seconds:>10.3f}{up:>12,.0f}{down:>12,.0f}{server_s:>10.2f}")


def size_of(record: Record) -> int:
    """The bytes of a record without Flower's envelope: numbers of eight bytes, and bytes and strings as they are."""
    values = [each for value in record.values() for each in (value if isinstance(value, list) else [value])]
    return sum(len(value) if isinstance(value, bytes | str) else 8 for value in values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=200)
    parser.add_argument("--samples", type=int, default=3000)
    parser.add_argument("--dropouts", type=int, default=20)
    given = parser.parse_args()
    grid = planned_grid(given.devices, given.samples, given.dropouts)
    identities = [Identity() for _ in range(given.devices)]
    roster = Roster.of(identities)
    terms = sum_terms(grid, roster)
    length, bits = terms.length, terms.modulus.bits
    print(
        f"{given.devices} devices, {length:,} numbers of {bits} bits ({terms.modulus.num_bytes(length):,} bytes), ",
        end="",
    )
    print(f"{given.dropouts} drop out, at least {terms.threshold} must be left")
    began = time.process_time()
    discrete_gaussian(float(grid.grid.deviation[0, 0] / grid.grid.spacing[0]), length)
    print(f"a device's discrete Gaussian noise: {time.process_time() - began:.3f} s")
    play(terms, roster, identities, grid, given.dropouts)


def planned_grid(devices: int, samples: int, dropouts: int) -> SumGrid:
    """The grid of the first round, charged to a ledger in memory."""
    changes = [f"fleet.devices={devices}", "data.samples_per_device=60", f"public.samples={samples}"]
    changes += ["air.medium=secure_sum", f"fleet.expected_dropouts={dropouts}", "learning.rounds=1"]
    scheme = load_scheme(SCHEME)
    plan = plan_scheme(scheme, as_run_by(scheme, load("quick", [*changes, "privacy.noise=secure"])))
    ledger = Ledger(ledger_header(plan, SCHEME, scheme.releases))
    return charge_round(plan, ledger, channel_source(plan.scenario), 1, secure_sum=True).summed


def play(terms: Terms, roster: Roster, identities: list[Identity], grid: SumGrid, dropouts: int) -> None:
    meter, server = Meter(), ServerSide(terms, roster.public_keys)
    keys = roster.public_keys
    states = {device: DeviceSide(terms, device, own, keys).to_json() for device, own in enumerate(identities)}
    rng = np.random.default_rng(0)
    values = {device: rng.integers(-grid.largest, grid.largest, terms.length, endpoint=True) for device in states}

    def step(name: str, question: Record, device: int, work: Callable[[DeviceSide], Record]) -> Record:
        def answered() -> Record:
            side = DeviceSide.from_json(states[device], identities[device], keys)
            answer = work(side)
            states[device] = side.to_json()
            as_text(answer)  # the reply cache
            return answer

        return meter.device(name, question, answered)

    for device in states:
        answer = step("keys", {}, device, lambda side: side.keys())
        meter.server("keys", lambda answer=answer: server.take_keys(answer))
    question = keys_question(server.keys_for_all())
    for device in states:
        answer = step("shares", question, device, lambda side: side.shares(keys_in(question, terms.round_number)))
        meter.server("shares", lambda answer=answer: server.take_shares(answer))
    left = [device for device in states if device >= dropouts]
    for device in left:
        delivery = server.delivery_for(device)
        answer = step(
            "masked",
            delivery,
            device,
            lambda side, delivery=delivery, device=device: {
                "words": terms.modulus.packed(side.masked(delivery, values[device]))
            },
        )
        words = meter.server("masked", lambda answer=answer: terms.modulus.unpacked(answer["words"], terms.length))
        server.take_masked(device, words)
    for device in left:
        survivors = server.survivors_question()
        answer = step("confirm", survivors, device, lambda side, survivors=survivors: side.confirm(survivors))
        meter.server("confirm", lambda answer=answer: server.take_confirmation(answer))
    for device in left:
        reveal = server.reveal_question()
        answer = step("reveal", reveal, device, lambda side, reveal=reveal: side.reveal(reveal))
        meter.server("reveal", lambda answer=answer: server.take_reveal(answer))
    total = meter.server("sum", server.total)
    assert np.array_equal(total, sum(values[device] for device in left))
    meter.print()


if __name__ == "__main__":
    main()
