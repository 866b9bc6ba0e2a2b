"""The ledger: every release is written down before it goes out, and none goes out that a device cannot pay.

Lines are of three kinds: an header (who was promised what, and on which terms), releases, and a note that another
run goes on from here. A ledger may hold several runs of the same devices, one after the other.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.errors import AirDistillError
from airdistill.files import jsonable
from airdistill.privacy.assumptions import Terms
from airdistill.privacy.chain import Chain, LedgerError, digest_of_body, ends_with
from airdistill.privacy.release import Release, Spending, SubsampledSpending
from airdistill.privacy.targets import epsilon_of_mu

logger = logging.getLogger(__name__)
TOLERANCE = 1e-9  # relative, of μ²: rounding must not stop a run of exactly the planned rounds
FORMAT = 1


class BudgetExceeded(AirDistillError):  # noqa: N818 - the name says what happened
    """A round would have cost a device more than it was promised; it did not happen."""


@dataclass(frozen=True)
class LedgerHeader:
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
    def from_dict(cls, stored: Mapping[str, Any]) -> LedgerHeader:
        if stored["format"] != FORMAT:
            raise LedgerError(f"a ledger of format {stored['format']}: this version reads format {FORMAT}")
        numbers = {name: _array(stored[name]) for name in ("epsilon", "delta", "mu")}
        return cls(**{name: stored[name] for name in stored if name not in ("kind", "format")} | numbers)


class Ledger:
    """What the devices have spent; with a chain, on disk."""

    def __init__(self, header: LedgerHeader, chain: Chain | None = None) -> None:
        self.header = header
        self.chain = chain
        self.spending = Spending(header.num_devices)
        self._before_this_run = self.spending
        self._hidden = SubsampledSpending.promised_by(header.payload, header.terms)
        self.num_releases = 0  # of this run
        self.num_earlier = 0  # of the same devices' runs before
        self.last_round = 0  # of this run that was charged
        self.settled_round = 0  # the last of them that is not to be played again
        # (w s)²/c of this run so far under the declared models, `[device, row]`: what a design may carry over.
        self.cost_of_run = np.zeros((header.num_devices, header.num_rows))
        self.earlier_headers: list[LedgerHeader] = []  # of those that released anything
        self._in_memory: list[Release] = []
        self._last_written: Release | None = None
        self._charged_before: deque[Release] = deque()

    @classmethod
    def begin(
        cls, header: LedgerHeader, path: Path, given: Path | None = None, leftover: LedgerHeader | None = None
    ) -> Ledger:
        """A new ledger for a run; `given` is the ledger of the same devices' run before, from which it goes on.

        The new file is whole before the given one is closed: whatever a crash leaves, no release is forgotten. A start
        that was killed after that leaves a `leftover` in its folder, and may be made again there, and nowhere else.
        """
        if path.exists() and not ends_with(path, "opening"):
            raise LedgerError(f"{path}: is there already, with releases; a ledger is never begun anew")
        if given is None:
            Chain.begin(path, header.to_dict())
            return cls.read(path)
        before = cls.read(given)
        _check_same_devices(before, header)
        assert before.chain is not None
        if before.closed:
            header = _same_start(before.chain, header, leftover)
        Chain.begin(path, header.to_dict(), before.chain, before.chain.num_lines - before.closed)
        if not before.closed:
            by = digest_of_body(header.to_dict())
            before.chain.append({"kind": "continued", "by": by, "in": str(path.parent)})
        return cls.read(path)

    @classmethod
    def read(cls, path: Path, recorded_rounds: int | None = None, noise_is_kept: bool = False) -> Ledger:
        """All that the file says has been charged.

        With `recorded_rounds`, as it stood when so many rounds of the last run had been recorded: what was charged
        since is played again. Seeded noise is then the same, and what went out is charged once. Secure noise is new,
        so that all that was charged stays charged; unless `noise_is_kept` by whoever drew it, and sent again as it was.
        """
        try:
            headers = _headers_in(path)
            ledger = cls(LedgerHeader.from_dict(headers[-1]))
            is_same = noise_is_kept or ledger.header.noise == "seeded"
            ledger._read_lines(path, len(headers), recorded_rounds if is_same else None)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise LedgerError(f"{path}: is no ledger: {error}") from None
        return ledger

    def _read_lines(self, path: Path, num_runs: int, recorded_rounds: int | None) -> None:
        headers: list[LedgerHeader] = []

        def see(body: dict[str, Any]) -> None:
            if body["kind"] == "opening":
                headers.append(LedgerHeader.from_dict(body))
                self._last_written = None
            elif body["kind"] == "release":
                run = headers[-1]
                release = Release.from_dict(body, (run.num_devices, run.num_rows), self._last_written)
                self._last_written = release
                self.last_round = release.round_index if len(headers) == num_runs else 0
                self._take_in(release, run, len(headers) < num_runs, recorded_rounds)

        self.chain = Chain.read(path, see)

    def _take_in(self, release: Release, run: LedgerHeader, earlier: bool, recorded_rounds: int | None) -> None:
        if earlier:
            self.spending = self._before_this_run = self.spending.after(release, run.payload)
            self.num_earlier += 1
            if not self.earlier_headers or self.earlier_headers[-1] is not run:
                self.earlier_headers.append(run)
        elif recorded_rounds is not None and release.round_index > recorded_rounds:
            self._charged_before.append(release)
        else:
            self._count(release)

    def charge(self, release: Release) -> None:
        """Writes a release down, before it goes out; `BudgetExceeded` if a device cannot pay for it."""
        if self._charged_before:
            if self._charged_before[0].same_as(release):
                self._count(self._charged_before.popleft())
                return
            logger.warning("round %d differs from what was charged for it: charged again", release.round_index)
            for charged in self._charged_before:
                self._count(charged)
            self._charged_before.clear()
        self._check(release)
        if self.chain is None:
            self._in_memory.append(release)
        elif self.chain.last["kind"] == "continued":
            raise LedgerError(f"{self.chain.path}: another run has gone on from it; nothing more can be charged")
        else:
            self.chain.append({"kind": "release", **release.to_dict(self._last_written)})
        self._last_written, self.last_round = release, release.round_index
        self._count(release)

    def _count(self, release: Release) -> None:
        self.spending = self.spending.after(release, self.header.payload)
        self._hidden = None if self._hidden is None else self._hidden.after(release)
        self.cost_of_run = self.cost_of_run + release.cost(self.header.sensitivity, self.header.trust)
        self.num_releases += 1
        self.settled_round = release.round_index

    def history(self) -> Iterator[tuple[str, Release]]:
        """Every release of these devices with its payload, this run's last; read from the disk one by one."""
        if self.chain is None:
            yield from ((self.header.payload, release) for release in self._in_memory)
            return
        run, before = self.header, None
        for body in self.chain.bodies():
            if body["kind"] == "opening":
                run, before = LedgerHeader.from_dict(body), None
            elif body["kind"] == "release":
                before = Release.from_dict(body, (run.num_devices, run.num_rows), before)
                yield run.payload, before

    @property
    def releases(self) -> list[Release]:
        """Of this run alone."""
        return [release for _, release in itertools.islice(self.history(), self.num_earlier, None)]

    @property
    def charged_ahead(self) -> bool:
        """Whether the next round was charged before, and is played again."""
        return bool(self._charged_before)

    @property
    def closed(self) -> bool:
        """Whether another run has gone on from here."""
        return self.chain is not None and self.chain.last["kind"] == "continued"

    def squared_mu(self) -> FloatArray:
        """μ² of every device so far under the declared models, `[device]`."""
        return self._declared(self.spending)

    def _declared(self, spending: Spending) -> FloatArray:
        return spending.squared_mu(self.header.sensitivity, self.header.trust, self.header.relabel)

    def epsilon(self, model: str | None = None, trust: str | None = None) -> FloatArray:
        """ε of every device so far, `[device]`, under the declared models or others.

        Hidden coins amplify what is told of whole devices; of one record no more is told than of all of them.
        """
        terms = self.header
        trusted = trust or terms.trust
        squared = self.spending.squared_mu(model or terms.sensitivity, trusted, terms.relabel)
        in_full = epsilon_of_mu(np.sqrt(squared), terms.delta, terms.noise)
        if self._hidden is None:
            return in_full
        return np.minimum(in_full, self._hidden.epsilon(trusted, terms.delta, self._earlier(trusted)))

    def highest_epsilon(self) -> float:
        """The largest ε of any device so far under the declared models; with hidden coins, one that is not far above
        it and by far cheaper than that of all of them."""
        terms = self.header
        if self._hidden is None or self.num_releases == 0:
            return float(self.epsilon().max())
        return self._hidden.highest_epsilon(terms.trust, terms.delta, self._earlier(terms.trust))

    def _earlier(self, trust: str) -> FloatArray:
        """μ² of whole devices by the runs before, `[device]`."""
        return self._before_this_run.squared_mu("device", trust, relabel=False)

    def _check(self, release: Release) -> None:
        terms = self.header
        over = self._over_budget(release) if terms.enforced else None
        if over is None:
            return
        device, wanted = over
        raise BudgetExceeded(
            f"round {release.round_index} would take device {device} to ε = {wanted:.6g} of the "
            f"{terms.epsilon[device]:.6g} that it was promised at δ = {terms.delta[device]:.3g} (sensitivity "
            f"{terms.sensitivity}, trust {terms.trust}, accountant {terms.accountant}); it did not happen"
        )

    def _over_budget(self, release: Release) -> tuple[int, float] | None:
        """Of the devices that cannot pay for a release, the one that is furthest over, and the ε that it would have."""
        terms = self.header
        if self._hidden is not None:
            return self._hidden.after(release).over_budget(terms, self._earlier(terms.trust))
        spent = self._declared(self.spending.after(release, terms.payload))
        over = spent > terms.mu**2 * (1 + TOLERANCE)
        if not over.any():
            return None
        device = int(np.argmax(np.where(over, _times_over(spent, terms.mu**2), -1.0)))
        each = slice(device, device + 1)
        return device, float(epsilon_of_mu(np.sqrt(spent[each]), terms.delta[each], terms.noise)[0])


def _times_over(spent: FloatArray, budget: FloatArray) -> FloatArray:
    """How many times over its budget; no budget was asked for where it is infinite."""
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(spent / budget, nan=0.0)


def spent_before(path: Path, terms: Terms, num_devices: int) -> FloatArray:
    """μ² that earlier runs of the same devices have spent, `[device]`, counted on a new run's terms."""
    earlier = Ledger.read(path)
    _check_fleet(earlier, terms, num_devices)
    return earlier.spending.squared_mu(terms.sensitivity, terms.trust, terms.relabel)


def _same_start(closed: Chain, header: LedgerHeader, leftover: LedgerHeader | None) -> LedgerHeader:
    """The header that closed a ledger, if a start that was killed left it behind and this one is the same."""
    token = {} if leftover is None or "run" not in leftover.terms else {"run": leftover.terms["run"]}
    again = replace(header, terms={**header.terms, **token})
    if leftover is None or digest_of_body(again.to_dict()) != closed.last["by"]:
        folder = closed.last["in"]
        raise LedgerError(
            f"{closed.path}: another run has gone on from it, in {folder}: give that run's ledger; if that start was "
            f"killed before it began, repeat it as it was with --out {folder}"
        )
    return again


def _headers_in(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def see(body: dict[str, Any]) -> None:
        if body["kind"] == "opening":
            found.append(body)

    Chain.read(path, see)
    return found


def _check_fleet(earlier: Ledger, terms: Terms, num_devices: int) -> None:
    path = None if earlier.chain is None else earlier.chain.path
    if earlier.header.num_devices != num_devices:
        raise LedgerError(f"{path}: is of {earlier.header.num_devices} devices, and this run has {num_devices}")
    if earlier.header.noise != terms.noise:
        raise LedgerError(f"{path}: is of {earlier.header.noise} noise, and this run has {terms.noise} noise")


def _check_same_devices(earlier: Ledger, header: LedgerHeader) -> None:
    _check_fleet(earlier, header, header.num_devices)
    for run in (*earlier.earlier_headers, earlier.header):
        if run.payload == header.payload and run.num_rows != header.num_rows:
            path = None if earlier.chain is None else earlier.chain.path
            rule = f"has {run.num_rows} rows of {run.payload}, and this run has {header.num_rows}"
            raise LedgerError(f"{path}: {rule}: it cannot be of the same devices")


def _array(values: list[float | None]) -> FloatArray:
    return np.array([np.inf if value is None else value for value in values], dtype=np.float64)
