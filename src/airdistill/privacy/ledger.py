"""The ledger: every release is written down before it goes out, and none goes out that a device cannot pay.

Lines are of three kinds: an opening (who was promised what, and on which terms), releases, and a note that another
run goes on from here. A ledger may hold several runs of the same devices, one after the other.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.errors import AirDistillError
from airdistill.jsonable import jsonable
from airdistill.privacy.chain import Chain, LedgerError
from airdistill.privacy.release import Release
from airdistill.privacy.spending import Spending
from airdistill.privacy.targets import epsilon_of_mu

logger = logging.getLogger(__name__)
TOLERANCE = 1e-9  # relative, of μ²: rounding must not stop a run of exactly the planned rounds
FORMAT = 1


class BudgetExceeded(AirDistillError):  # noqa: N818 - the name says what happened
    """A round would have cost a device more than it was promised; it did not happen."""


@dataclass(frozen=True)
class Opening:
    """What every device was promised, `[device]`, and what the promise is about.

    `mu` is what the declared accountant grants. `enforced` is false where numbers go out as they are: then nothing
    was promised that could be kept. `terms` are facts that a certificate must state.
    """

    name: str
    scheme: str
    payload: str
    num_rows: int
    epsilon: FloatArray
    delta: FloatArray
    mu: FloatArray
    sensitivity: str
    trust: str
    accountant: str
    relabel: bool
    noise: str
    enforced: bool = True
    terms: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_devices(self) -> int:
        return len(self.epsilon)

    def to_dict(self) -> dict[str, Any]:
        written: dict[str, Any] = jsonable({"kind": "opening", "format": FORMAT, **asdict(self)})
        return written

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Opening:
        if stored["format"] != FORMAT:
            raise LedgerError(f"a ledger of format {stored['format']}: this version reads format {FORMAT}")
        numbers = {name: _array(stored[name]) for name in ("epsilon", "delta", "mu")}
        return cls(**{name: stored[name] for name in stored if name not in ("kind", "format")} | numbers)


class Ledger:
    """What the devices have spent; with a chain, on disk."""

    def __init__(self, opening: Opening, chain: Chain | None = None) -> None:
        self.opening = opening
        self.chain = chain
        self.spending = Spending(opening.num_devices)
        self.releases: list[Release] = []
        self._earlier: list[tuple[str, Release]] = []  # payload and release of the same devices' runs before
        self._last_written: Release | None = None
        self._charged_before: deque[Release] = deque()

    @classmethod
    def begin(cls, opening: Opening, path: Path, given: Path | None = None) -> Ledger:
        """A new ledger for a run; `given` is the ledger of the same devices' run before, from which it goes on."""
        chain = Chain.new(path)
        if given is not None:
            for body in _closed_for(Chain.read(given), opening).bodies:
                chain.append(body)
        chain.append(opening.to_dict())
        return cls.read(path)

    @classmethod
    def read(cls, path: Path) -> Ledger:
        """All that the file says has been charged."""
        chain = Chain.read(path)
        try:
            return cls._of(chain)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise LedgerError(f"{path}: is no ledger: {error}") from None

    @classmethod
    def _of(cls, chain: Chain) -> Ledger:
        openings = [Opening.from_dict(body) for body in chain.bodies if body["kind"] == "opening"]
        ledger, number, before = cls(openings[-1], chain), 0, None
        for body in chain.bodies:
            if body["kind"] == "opening":
                number, before = number + 1, None
            elif body["kind"] == "release":
                run = openings[number - 1]
                before = Release.from_dict(body, (run.num_devices, run.num_rows), before)
                ledger.spending = ledger.spending.after(before, run.payload)
                if number == len(openings):
                    ledger.releases.append(before)
                else:
                    ledger._earlier.append((run.payload, before))
        ledger._last_written = before
        return ledger

    def from_round(self, round_index: int) -> Ledger:
        """As it stood when that round of the run had been recorded; what was charged since is played again.

        Seeded noise is then the same, and what went out is charged once. Secure noise is new, so that all that was
        charged stays charged.
        """
        assert self.chain is not None
        if self.opening.noise == "secure":
            return self
        rewound = Ledger(self.opening, self.chain)
        rewound._last_written = self._last_written
        rewound._earlier = self._earlier
        for payload, release in self._earlier:
            rewound.spending = rewound.spending.after(release, payload)
        for release in self.releases:
            if release.round_index <= round_index:
                rewound._count(release)
            else:
                rewound._charged_before.append(release)
        return rewound

    def charge(self, release: Release) -> None:
        """Writes a release down, before it goes out; `BudgetExceeded` if a device cannot pay for it."""
        if self._charged_before:
            if self._charged_before[0].same_as(release):
                self._count(self._charged_before.popleft())
                return
            logger.warning("round %d differs from what was charged for it: charged again", release.round_index)
            self._count_all(self._charged_before)
            self._charged_before.clear()
        after = self.spending.after(release, self.opening.payload)
        self._check(after, release.round_index)
        if self.chain is not None:
            if self.chain.bodies[-1]["kind"] == "continued":
                raise LedgerError(f"{self.chain.path}: another run has gone on from it; nothing more can be charged")
            self.chain.append({"kind": "release", **release.to_dict(self._last_written)})
        self._last_written = release
        self._count(release)

    def _count(self, release: Release) -> None:
        self.spending = self.spending.after(release, self.opening.payload)
        self.releases.append(release)

    def _count_all(self, releases: Iterable[Release]) -> None:
        for release in releases:
            self._count(release)

    @property
    def history(self) -> list[tuple[str, Release]]:
        """Every release of these devices, this run's last, with its payload."""
        return [*self._earlier, *((self.opening.payload, release) for release in self.releases)]

    def squared_mu(self) -> FloatArray:
        """μ² of every device so far under the declared models, `[device]`."""
        return self._declared(self.spending)

    def _declared(self, spending: Spending) -> FloatArray:
        return spending.squared_mu(self.opening.sensitivity, self.opening.trust, self.opening.relabel)

    def epsilon(self, model: str | None = None, trust: str | None = None) -> FloatArray:
        """ε of every device so far, `[device]`, under the declared models or others."""
        terms = self.opening
        squared = self.spending.squared_mu(model or terms.sensitivity, trust or terms.trust, terms.relabel)
        return epsilon_of_mu(np.sqrt(squared), terms.delta, terms.noise)

    def _check(self, after: Spending, round_index: int) -> None:
        terms = self.opening
        spent = self._declared(after)
        over = spent > terms.mu**2 * (1 + TOLERANCE)
        if not terms.enforced or not over.any():
            return
        device = int(np.argmax(np.where(over, _times_over(spent, terms.mu**2), -1.0)))
        wanted = epsilon_of_mu(np.sqrt(spent[device : device + 1]), terms.delta[device : device + 1], terms.noise)[0]
        raise BudgetExceeded(
            f"round {round_index} would take device {device} to ε = {wanted:.6g} of the {terms.epsilon[device]:.6g} "
            f"that it was promised at δ = {terms.delta[device]:.3g} (sensitivity {terms.sensitivity}, trust "
            f"{terms.trust}, accountant {terms.accountant}); it did not happen"
        )


def _times_over(spent: FloatArray, budget: FloatArray) -> FloatArray:
    """How many times over its budget; no budget was asked for where it is infinite."""
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(spent / budget, nan=0.0)


class Terms(Protocol):
    """How a run counts privacy: the fields of a scenario's privacy section, or of an opening."""

    @property
    def sensitivity(self) -> str: ...

    @property
    def trust(self) -> str: ...

    @property
    def relabel(self) -> bool: ...

    @property
    def noise(self) -> str: ...


def spent_before(path: Path, terms: Terms, num_devices: int) -> FloatArray:
    """μ² that earlier runs of the same devices have spent, `[device]`, counted on a new run's terms."""
    earlier = Ledger.read(path)
    _check_same_devices(path, earlier.opening, terms, num_devices)
    return earlier.spending.squared_mu(terms.sensitivity, terms.trust, terms.relabel)


def _closed_for(chain: Chain, opening: Opening) -> Chain:
    """The given ledger with a last line that says who goes on: two runs that both go on would each forget the other."""
    follower = opening.to_dict()
    last = chain.bodies[-1] if chain.bodies else {"kind": "nothing"}
    if last["kind"] == "continued" and last["by"] != follower:
        raise LedgerError(f"{chain.path}: another run has gone on from it; give that run's ledger")
    _check_same_devices(chain.path, Ledger.read(chain.path).opening, opening, opening.num_devices)
    if last["kind"] != "continued":
        chain.append({"kind": "continued", "by": follower})
    return chain


def _check_same_devices(path: Path, earlier: Opening, terms: Terms, num_devices: int) -> None:
    if earlier.num_devices != num_devices:
        raise LedgerError(f"{path}: is of {earlier.num_devices} devices, and this run has {num_devices}")
    if earlier.noise != terms.noise:
        raise LedgerError(f"{path}: is of {earlier.noise} noise, and this run has {terms.noise} noise")


def _array(values: list[float | None]) -> FloatArray:
    return np.array([np.inf if value is None else value for value in values], dtype=np.float64)
