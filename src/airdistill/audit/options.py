"""Options of an audit: which attacks are made, on which device, and with how much computation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from airdistill.errors import Described, InputError
from airdistill.planning.plan import Plan

PARTS = ("recorded", "exact", "empirical", "membership", "labels")
ATTACKS = PARTS[1:]  # they replay the plan, and need no run
_MOST_ROUNDS_BY_DEFAULT = 50

# (stage, done, total), after every step of a stage.
OnProgress: TypeAlias = Callable[[str, int, int], None]


@dataclass(frozen=True)
class AuditOptions:
    """`device` is the index of the audited device; with `rounds` None at most the first 50 are audited.

    `candidates` neighbours by one record are tried. The worst is followed along `transcripts` fresh sequences of
    broadcasts. The likelihood-ratio attack and label inference make `trials` for each dataset of the pair. Membership
    inference trains `shadows` fleets of at most `shadow_devices` devices: fewer devices cost less and make the
    attacker's model of the fleet slightly coarser. Label inference trains ten devices for each of the `shadows`.
    """

    device: int = 0
    rounds: int | None = None
    transcripts: int = 20
    candidates: int = 12
    trials: int = 1000
    shadows: int = 8
    shadow_devices: int = 10
    seed: int = 0
    parts: tuple[str, ...] = PARTS

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(self.parts))
        least = {"transcripts": 1, "candidates": 1, "trials": 10, "shadows": 4, "shadow_devices": 1, "seed": 0}
        for name, smallest in least.items():
            if getattr(self, name) < smallest:
                raise InputError(f"--{name.replace('_', '-')}", getattr(self, name), f"must be at least {smallest}")
        if self.shadows % 2:
            raise InputError("--shadows", self.shadows, "must be even: shadow fleets come in complementary pairs")
        if not self.parts or not set(self.parts) <= set(PARTS):
            given = Described(", ".join(self.parts) or "none")
            raise InputError("--parts", given, f"must be some of {', '.join(PARTS)}")

    def num_rounds(self, plan: Plan) -> int:
        """The number of audited rounds, counted from the first."""
        if self.rounds is None:
            return min(plan.num_rounds, _MOST_ROUNDS_BY_DEFAULT)
        if not 1 <= self.rounds <= plan.num_rounds:
            raise InputError("--rounds", self.rounds, f"must lie between 1 and the plan's {plan.num_rounds}")
        return self.rounds

    def check_device(self, plan: Plan) -> None:
        if not 0 <= self.device < plan.fleet.num_devices:
            rule = f"the fleet's devices are 0 to {plan.fleet.num_devices - 1}"
            raise InputError("--audited-device", self.device, rule)
