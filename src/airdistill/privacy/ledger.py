"""The ledger: every release is recorded before it is transmitted, and a release beyond a device's budget is refused.

A line is a header (every device's target, and the terms of the guarantee), a release, or a note that another run
continues the ledger elsewhere. A ledger may hold several runs of the same devices in a row.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.errors import AirDistillError
from airdistill.privacy.assumptions import Terms
from airdistill.privacy.chain import (
    Chain,
    LedgerError,
    digest_before_last,
    digest_of_body,
    ends_with,
    headers_in,
    readable,
)
from airdistill.privacy.correlation import Correlation, JointRounds
from airdistill.privacy.groups import over_distinct
from airdistill.privacy.ledger_header import LedgerHeader, excess_of_runs, noise_origin, problem_with_excess, same_start
from airdistill.privacy.release import GroupedRelease, Release
from airdistill.privacy.spending import EarlierRuns, Spending, SubsampledSpending
from airdistill.privacy.targets import epsilon_of_mu, without_rounding
from airdistill.privacy.trust import TRUST_MODELS, TrustStatement, trust_from, trust_statement

logger = logging.getLogger(__name__)
TOLERANCE = 1e-9  # relative, of μ²: rounding must not stop a run of exactly the planned rounds


class BudgetExceeded(AirDistillError):  # noqa: N818 - the name says what happened
    """A round would have exceeded a device's budget; it was not transmitted."""


class Ledger:
    """What the devices have spent; on disk if there is a chain."""

    def __init__(self, header: LedgerHeader, chain: Chain | None = None) -> None:
        self.header = header
        self.chain = chain
        self.spending = Spending.nothing(header.num_devices)
        self._before_this_run = self.spending
        self._subsampled = SubsampledSpending.from_header(header.payload, header.terms)
        correlation = Correlation.from_header(header.terms)
        self._joint = None if correlation is None else JointRounds(correlation)
        self.num_releases = 0  # of this run
        self.num_earlier = 0  # releases of earlier runs of the same devices
        self.last_round = 0  # the last round of this run that was charged
        self.settled_round = 0  # the last of them that will not be repeated
        self._cost_of_run = Spending.nothing(header.num_devices)  # under the declared models
        self.latest_round = 0  # of all runs
        self.earlier_headers: list[LedgerHeader] = []  # of those that released anything
        self.earlier_counts: list[int] = []  # how many releases each of them has
        self._in_memory: list[GroupedRelease] = []
        self._last_written: GroupedRelease | None = None
        self._charged_before: deque[tuple[int, GroupedRelease]] = deque()  # with their entries, to be repeated
        self._num_entries = 0  # of this run, whether counted or to be repeated
        self._noise_origin = noise_origin(header, "", 0)

    @classmethod
    def begin(
        cls, header: LedgerHeader, path: Path, given: Path | None = None, leftover: LedgerHeader | None = None
    ) -> Ledger:
        """Begin the ledger of a run. It continues `given`, the ledger of an earlier run of the same devices.

        The new file is complete before the given one is closed: no crash can lose a release. A start that is killed
        after that leaves a `leftover` header in its folder, and can be repeated in that folder only, with the same
        ledger given.
        """
        if path.exists() and not ends_with(path, "opening"):
            raise LedgerError(f"{path}: exists and has releases; a ledger cannot be begun twice")
        _check_keeps_earlier_runs(path, given)
        if given is None:
            Chain.begin(path, header.to_dict())
            return cls.read(path)
        before = cls.read(given)
        _check_same_devices(before, header)
        assert before.chain is not None
        if before.closed:
            header = same_start(before.chain, header, leftover)
        Chain.begin(path, header.to_dict(), before.chain, before.chain.num_lines - before.closed)
        if not before.closed:
            by = digest_of_body(header.to_dict())
            before.chain.append({"kind": "continued", "by": by, "in": str(path.parent)})
        return cls.read(path)

    @classmethod
    def read(
        cls, path: Path, recorded_rounds: int | None = None, noise_is_kept: bool = False, check_head: bool = True
    ) -> Ledger:
        """Read everything that was charged.

        With `recorded_rounds`, return the state after that many recorded rounds of the last run; later rounds are
        repeated. Seeded noise is then the same, and a repeated round is charged once. Secure noise is new, and so
        every charge stays; unless `noise_is_kept` says that the caller stored the noise and sends it again.
        """
        *earlier, (number, last) = headers_in(path, check_head)
        try:
            with readable(path, number):
                ledger = cls(LedgerHeader.from_dict(last))
        except LedgerError:
            Chain.read(path, None, check_head)  # which says so if a line was edited
            raise
        is_same = noise_is_kept or ledger.header.noise == "seeded"
        ledger._read_lines(path, len(earlier) + 1, recorded_rounds if is_same else None, check_head)
        return ledger

    def _read_lines(self, path: Path, num_runs: int, recorded_rounds: int | None, check_head: bool) -> None:
        headers: list[LedgerHeader] = []
        self._noise_origin = ""

        def see(body: dict[str, Any]) -> None:
            if body["kind"] == "opening":
                headers.append(LedgerHeader.from_dict(body))
                self._noise_origin = noise_origin(headers[-1], self._noise_origin, self._num_entries)
                self._last_written, self._num_entries = None, 0
            elif body["kind"] == "release":
                self._num_entries += 1
                run = headers[-1]
                release = GroupedRelease.from_line(body, run.format, run.shape, self._last_written)
                self._last_written = release
                self.last_round = release.round_index if len(headers) == num_runs else 0
                self._take_in(release, run, len(headers) < num_runs, recorded_rounds)

        self.chain = Chain.read(path, see, check_head)
        if len(headers) != num_runs:
            raise LedgerError(f"{path}: is not a ledger: {len(headers)} headers, {num_runs} of them in canonical form")

    def _take_in(self, release: GroupedRelease, run: LedgerHeader, earlier: bool, recorded_rounds: int | None) -> None:
        if earlier:
            self.spending = self._before_this_run = self.spending.after(release, run.rows)
            self.num_earlier += 1
            self.latest_round = max(self.latest_round, release.round_index)
            if not self.earlier_headers or self.earlier_headers[-1] is not run:
                self.earlier_headers.append(run)
                self.earlier_counts.append(0)
            self.earlier_counts[-1] += 1
        elif recorded_rounds is not None and release.round_index > recorded_rounds:
            self._charged_before.append((self._num_entries, release))
        else:
            problem = self._problem_with_noise(release)
            if problem is not None:
                raise ValueError(problem)
            self._count(release)

    def charge(self, release: Release) -> str:
        """Record a release before it is transmitted, and return the key of its entry, from which its noise is drawn.

        No other entry has this key: not of this ledger, and not of one that continues it or has other terms. Raise
        `BudgetExceeded` if the release exceeds a device's budget, and `LedgerError` if it cannot be a release.
        """
        grouped = self._checked(release)
        if self._charged_before:
            entry, charged = self._charged_before[0]
            if charged.same_as(grouped):
                self._charged_before.popleft()
                self._count(charged)
                return self._noise_key(entry)
            logger.warning("round %d differs from its earlier charge and is charged again", release.round_index)
            for _, charged in self._charged_before:
                self._count(charged)
            self._charged_before.clear()
        _refuse(self._problem_with_noise(grouped))
        spending = self.spending.after(grouped, self.header.rows)
        self._check(grouped, spending)
        if self.chain is None:
            self._in_memory.append(grouped)
        elif self.chain.last["kind"] == "continued":
            raise LedgerError(f"{self.chain.path}: another run continues it; nothing more can be charged here")
        else:
            self.chain.append({"kind": "release", **grouped.line(self.header.format, self._last_written)})
        self._last_written, self.last_round = grouped, grouped.round_index
        self._num_entries += 1
        self._count(grouped, spending)
        return self._noise_key(self._num_entries)

    @property
    def noise_keys(self) -> list[str]:
        """The keys of this run's entries, in order."""
        return [self._noise_key(entry) for entry in range(1, self._num_entries + 1)]

    def _noise_key(self, entry: int) -> str:
        """Empty in a run that a version before 0.2 began: its noise depends on seed and round alone."""
        return f"{self._noise_origin}-{entry}" if self._noise_origin else ""

    def _count(self, release: GroupedRelease, spending: Spending | None = None) -> None:
        if self._joint is not None:
            self._joint.see(release.expanded())
        self.spending = spending or self.spending.after(release, self.header.rows)
        self._subsampled = None if self._subsampled is None else self._subsampled.after(release)
        declared = (self.header.sensitivity, self.header.trust)
        cost = {declared: release.kinds.cost(*declared)}
        self._cost_of_run = self._cost_of_run.plus(release.groups, self.header.rows, cost)
        self.num_releases += 1
        self.settled_round = release.round_index
        self.latest_round = max(self.latest_round, release.round_index)

    @property
    def cost_of_run(self) -> FloatArray:
        """(w s)²/c of this run so far under the declared models, `[device, row]`: what designs carry over."""
        cost = self._cost_of_run.cost(self.header.rows, self.header.sensitivity, self.header.trust)
        return np.zeros(self.header.shape) if cost is None else cost

    def history(self) -> Iterator[tuple[str, Release]]:
        """Every release of these devices with what its rows stand for, this run's last, read from disk one by one."""
        if self.chain is None:
            yield from ((self.header.rows, release.expanded()) for release in self._in_memory)
            return
        run, before = self.header, None
        for body in self.chain.bodies():
            if body["kind"] == "opening":
                run, before = LedgerHeader.from_dict(body), None
            elif body["kind"] == "release":
                before = GroupedRelease.from_line(body, run.format, run.shape, before)
                yield run.rows, before.expanded()

    @property
    def releases(self) -> list[Release]:
        """The releases of this run only."""
        return [release for _, release in itertools.islice(self.history(), self.num_earlier, None)]

    @property
    def charged_ahead(self) -> bool:
        """Whether the next round was charged before and is being repeated."""
        return bool(self._charged_before)

    @property
    def closed(self) -> bool:
        """Whether another run continues this ledger."""
        return self.chain is not None and self.chain.last["kind"] == "continued"

    @property
    def trust_names(self) -> tuple[str, ...]:
        """The trust models that releases are counted under: the built-in ones, and the declared one."""
        return tuple(dict.fromkeys((*TRUST_MODELS, self.header.trust)))

    def squared_mu(self) -> FloatArray:
        """μ² of every device so far under the declared models, `[device]`."""
        return self._declared(self.spending)

    def squared_mu_before(self) -> FloatArray:
        """What earlier runs of the same devices have of it, `[device]`."""
        return self._declared(self._before_this_run)

    def excess_delta(self, trust: TrustStatement, more_releases: int = 0) -> float:
        """The probability that a channel error of any run was beyond its limit, if this run released so many more."""
        counts = [*self.earlier_counts, self.num_releases + more_releases]
        return excess_of_runs([*self.earlier_headers, self.header], counts, trust)

    def _declared(self, spending: Spending) -> FloatArray:
        return spending.squared_mu(self.header.sensitivity, self.header.trust, self.header.relabel)

    def epsilon(self, model: str | None = None, trust: str | None = None) -> FloatArray:
        """ε of every device so far, `[device]`, under the declared models or others.

        Secret participation amplifies the privacy of whole devices; a record is protected at least as well as its
        device.
        """
        terms = self.header
        trusted = trust or terms.trust
        squared = self.spending.squared_mu(model or terms.sensitivity, trusted, terms.relabel)
        in_full = over_distinct(lambda s, d: epsilon_of_mu(np.sqrt(s), d, terms.noise), squared, terms.delta)
        if self._subsampled is not None:
            amplified = self._subsampled.epsilon(trusted, terms.delta, self._earlier(trusted))
            in_full = np.minimum(in_full, amplified)
        return without_rounding(in_full, terms.epsilon)

    def highest_epsilon(self) -> float:
        """The largest ε of any device so far under the declared models.

        With secret participation it is an upper bound that is slightly larger and much cheaper to compute.
        """
        terms = self.header
        if self._subsampled is None or self.num_releases == 0:
            return float(self.epsilon().max())
        return self._subsampled.highest_epsilon(terms.trust, terms.delta, self._earlier(terms.trust))

    def _earlier(self, trust: str) -> FloatArray:
        """μ² that earlier runs spent on whole devices, `[device]`."""
        return self._before_this_run.squared_mu("device", trust, relabel=False)

    def _checked(self, release: Release) -> GroupedRelease:
        """The release by groups of identical devices; `LedgerError` if it cannot be a release."""
        shape = self.header.shape
        carried = [] if release.carried_weights is None else [release.carried_weights]
        arrays = [release.weights, *carried, *release.sensitivity.values(), *release.counted_noise_var.values()]
        wrong = next((array.shape for array in arrays if array.shape != shape), None)
        if wrong is not None:
            _refuse(f"round {release.round_index}: an array of shape {wrong}; the ledger has [device, row] = {shape}")
        grouped = GroupedRelease.of(release, self._last_written)
        _refuse(grouped.problem())
        return grouped

    def _problem_with_noise(self, release: GroupedRelease) -> str | None:
        """Why a release does not follow from the run's rounds before it; None if it does, or its noise is independent.

        What a round with correlated noise reveals is computed here again, from the weights that were charged.
        """
        if self._joint is not None:
            return self._joint.problem(release.expanded())
        if release.kinds.carried_weights is None:
            return None
        return f"round {release.round_index}: carried_weights: the ledger's header states no correlated noise"

    def _check(self, release: GroupedRelease, spending: Spending) -> None:
        terms = self.header
        if not terms.enforced:
            return
        excess = self.excess_delta(trust_from(terms.trust, terms.terms), more_releases=1)
        problem = problem_with_excess(terms, excess)
        if problem is not None:
            raise BudgetExceeded(f"round {release.round_index}: {problem}; it was not transmitted")
        over = self._over_budget(release, spending)
        if over is None:
            return
        device, wanted = over
        row = release.row_without_noise(device, terms.sensitivity, terms.trust)
        bare = "" if row is None else f": no noise counts for its row {row}"
        raise BudgetExceeded(
            f"round {release.round_index} would take device {device} to ε = {wanted:.6g}, above its target "
            f"{terms.epsilon[device]:.6g} at δ = {terms.delta[device]:.3g} (sensitivity {terms.sensitivity}, trust "
            f"{terms.trust}, accountant {terms.accountant}){bare}; it was not transmitted"
        )

    def _over_budget(self, release: GroupedRelease, spending: Spending) -> tuple[int, float] | None:
        """The device that a release would take furthest above its budget, and the ε it would have; None if none."""
        terms = self.header
        if self._subsampled is not None:
            return self._subsampled.after(release).over_budget(terms, self._earlier(terms.trust))
        spent = self._declared(spending)
        over = spent > terms.mu**2 * (1 + TOLERANCE)
        if not over.any():
            return None
        device = int(np.argmax(np.where(over, _times_over(spent, terms.mu**2), -1.0)))
        each = slice(device, device + 1)
        return device, float(epsilon_of_mu(np.sqrt(spent[each]), terms.delta[each], terms.noise)[0])


def _refuse(problem: str | None) -> None:
    if problem is not None:
        raise LedgerError(f"{problem}; it was not charged and not transmitted")


def _times_over(spent: FloatArray, budget: FloatArray) -> FloatArray:
    """Spent over budget; 0 for an infinite budget."""
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(spent / budget, nan=0.0)


def spent_before(path: Path, terms: Terms, num_devices: int) -> EarlierRuns:
    """What earlier runs of the same devices have spent under a new run's terms."""
    earlier = Ledger.read(path)
    _check_fleet(earlier, terms, num_devices)
    squared_mu = earlier.spending.squared_mu(terms.sensitivity, terms.trust, terms.relabel)
    return EarlierRuns(squared_mu, earlier.excess_delta(trust_statement(terms.trust)))


def _check_keeps_earlier_runs(path: Path, given: Path | None) -> None:
    """Refuse to begin a ledger where a killed start left one that continues other runs than the given one."""
    continued = digest_before_last(path) if path.exists() else None
    if continued is None or (given is not None and continued in Chain.read(given)):
        return
    rule = "was left by a start that was killed, and has the releases of the runs that it continued"
    which = "without --ledger" if given is None else f"with --ledger {given}"
    raise LedgerError(
        f"{path}: {rule}; a start {which} would forget them: repeat that start's command, with its --ledger, or choose "
        f"another --out"
    )


def _check_fleet(earlier: Ledger, terms: Terms, num_devices: int) -> None:
    path = None if earlier.chain is None else earlier.chain.path
    if earlier.header.num_devices != num_devices:
        raise LedgerError(f"{path}: has {earlier.header.num_devices} devices, and this run has {num_devices}")
    if earlier.header.noise != terms.noise:
        raise LedgerError(f"{path}: has {earlier.header.noise} noise, and this run has {terms.noise} noise")


def _check_same_devices(earlier: Ledger, header: LedgerHeader) -> None:
    _check_fleet(earlier, header, header.num_devices)
    for run in (*earlier.earlier_headers, earlier.header):
        if run.payload == header.payload and run.num_rows != header.num_rows:
            path = None if earlier.chain is None else earlier.chain.path
            rule = f"has {run.num_rows} rows of {run.payload}, and this run has {header.num_rows}"
            raise LedgerError(f"{path}: {rule}: they cannot be the same devices")
