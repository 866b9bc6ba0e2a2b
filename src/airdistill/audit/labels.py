"""Inference of a device's label distribution from its answers on a public set.

A model answers with the classes that it was trained on, and so its answers reveal its class shares (Shi, Ouyang and
Wang, arXiv 2502.08001). Two attackers read them: one knows what all other devices sent, as differential privacy
assumes, and has one device's answers and the noise; the other has the sum only. Both are fixed before they see an
answer, by shadow devices (`label_shadows.py`). Each makes a test and an estimate:

* the test: does the device hold D, or D' with other labels? A Gaussian likelihood ratio whose means are those of shadow
  devices with the class shares of D and of D'. D and D' are neighbours of the whole-device guarantee: no test of a
  μ-Gaussian mechanism has an AUC above Φ(μ/√2) or an advantage (true minus false positive rate) above 2Φ(μ/2) − 1;
* the estimate: a linear estimate of the class shares from the answers, fitted to shadow devices with any shares.

The noise is drawn as in a run, anew in every trial.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import ndtr

from airdistill.arrays import FloatArray, IntArray
from airdistill.audit.context import AuditContext, NoiseSource
from airdistill.audit.empirical import affordable, production_source
from airdistill.audit.exact import TOLERANCE, guarantee_of, transcript_seed
from airdistill.audit.label_readers import Others, Reader
from airdistill.audit.label_shadows import LabelShadows, total_variation, train_label_shadows
from airdistill.audit.membership import LEVEL, Interval, auc, proportion
from airdistill.audit.options import AuditOptions, OnProgress
from airdistill.audit.public_membership import answer_noise_var
from airdistill.streams import stream

_ATTACKERS = ("knows the others' answers", "has the sum only")


@dataclass(frozen=True)
class LabelAttack:
    """What one attacker achieves. Distances are total variation between true and estimated class shares, on average.

    `distance` is with the noise, `distance_without_noise` without.
    """

    attacker: str
    auc: Interval
    advantage: Interval
    distance: float
    distance_without_noise: float


@dataclass(frozen=True)
class LabelAudit:
    """The device's class shares against those of D' `[class]`, and the attackers, the stronger one first.

    `mu` is the certified μ of these rounds. `distance_of_guess` is that of the attackers' guess without any answers.
    """

    shares: tuple[FloatArray, FloatArray]
    num_rounds: int
    num_trials: int
    num_shadows: int
    mu: float
    noise: str
    distance_of_guess: float
    attacks: tuple[LabelAttack, ...]

    @property
    def allowed_advantage(self) -> float:
        """The largest advantage of any test: 2Φ(μ/2) − 1.

        Sums of discrete Gaussians are accounted by ρ = μ²/2: Pinsker's bound, and that of Bretagnolle and Huber.
        """
        if self.noise == "secure":
            return float(min(self.mu / 2, np.sqrt(-np.expm1(-(self.mu**2) / 2))))
        return float(2 * ndtr(self.mu / 2) - 1)

    @property
    def allowed_auc(self) -> float:
        """The largest AUC of any test: Φ(μ/√2), or what an advantage a allows, 1/2 + a − a²/2."""
        if self.noise == "secure":
            return 0.5 + self.allowed_advantage - self.allowed_advantage**2 / 2
        return float(ndtr(self.mu / np.sqrt(2)))

    @property
    def violations(self) -> tuple[str, ...]:
        found = []
        for attack in self.attacks:
            for name, measured, allowed in [
                ("an AUC", attack.auc, self.allowed_auc),
                ("an advantage", attack.advantage, self.allowed_advantage),
            ]:
                if measured.low > allowed * (1 + TOLERANCE):
                    found.append(
                        f"An attacker who {attack.attacker} tells two label distributions of the device apart with "
                        f"{name} of {measured.value:.4f}, at least {measured.low:.4f}; μ = {self.mu:.3g} allows "
                        f"{allowed:.4f}."
                    )
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        return {
            "shares": {"held": self.shares[0], "compared": self.shares[1]},
            "rounds": self.num_rounds,
            "trials": self.num_trials,
            "shadows": self.num_shadows,
            "level": LEVEL,
            "certified_mu": self.mu,
            "allowed_auc": self.allowed_auc,
            "allowed_advantage": self.allowed_advantage,
            "distance_of_guess": self.distance_of_guess,
            "attacks": [
                {**vars(attack), "auc": vars(attack.auc), "advantage": vars(attack.advantage)}
                for attack in self.attacks
            ],
        }


def audit_labels(
    context: AuditContext, options: AuditOptions, on_progress: OnProgress, noise_source: NoiseSource | None = None
) -> LabelAudit | None:
    """Train the shadow devices, and attack fresh noise from the source; None if the device sends in no round."""
    noise_var = answer_noise_var(context)[:, 0]
    sent = np.array([context.link.gain(this)[0] > 0 for this in context.rounds]) & np.isfinite(noise_var)
    if not sent.any():
        return None
    on_progress("label shadows trained", 0, 1)
    shadows = train_label_shadows(context, options)
    on_progress("label shadows trained", 1, 1)
    num_trials, num_rounds = affordable(context, options.trials, int(sent.sum()))
    rounds = np.flatnonzero(sent)[:num_rounds]
    trials = _Trials(context, _of_rounds(shadows, rounds), rounds, options.seed, num_trials)
    source, guarantee = noise_source or production_source(context), guarantee_of(context)
    prior = shadows.any_shares.mean(axis=0)
    return LabelAudit(
        shares=shadows.shares,
        num_rounds=len(rounds),
        num_trials=num_trials,
        num_shadows=shadows.num_shadows,
        mu=float(guarantee.mu[rounds[-1]]),
        noise=guarantee.noise,
        distance_of_guess=float(np.mean([total_variation(prior, shares) for shares in shadows.shares])),
        attacks=trials.attack(noise_var[rounds], source, options, on_progress),
    )


def _of_rounds(shadows: LabelShadows, rounds: IntArray) -> LabelShadows:
    answers = {kind: found[:, rounds] for kind, found in shadows.answers.items()}
    return replace(shadows, pair=shadows.pair[:, rounds], answers=answers)


@dataclass(frozen=True)
class _Trials:
    """Trials of both attackers over the same noise. In each, the sum has other devices, drawn from shadow devices."""

    context: AuditContext
    shadows: LabelShadows
    rounds: IntArray
    seed: int
    count: int

    def attack(
        self, noise_var: FloatArray, source: NoiseSource, options: AuditOptions, on_progress: OnProgress
    ) -> tuple[LabelAttack, ...]:
        """Make all trials with noise of this variance `[round]`, drawn from the source."""
        known, others = self._others()
        readers = [Reader.of(self.shadows, noise_var, each) for each in (None, known)]
        read = np.zeros((len(readers), 2, self.count, len(readers[0].offset)))
        for trial in range(self.count):
            for side in (0, 1):
                answers = self._noisy(side, trial, source, options)
                read[:, side, trial] = [reader.linear(answers) for reader in readers]
            on_progress("labels attacked", trial + 1, self.count)
        quiet = [Reader.of(self.shadows, np.zeros_like(noise_var), each) for each in (None, known)]
        noiseless = [reader.linear(self.shadows.pair)[:, None] + np.zeros((self.count, 1)) for reader in quiet]
        found, drawn = [], self._drawn_others(known.count)
        for place, attacker in enumerate(_ATTACKERS):
            added = [0.0, 0.0] if place == 0 else [_sums(each[place], others, drawn) for each in (readers, quiet)]
            ratios, estimates = readers[place].read(read[place] + added[0])
            _, exact = quiet[place].read(noiseless[place] + added[1])
            found.append(
                LabelAttack(
                    attacker,
                    auc(ratios[1], ratios[0]),
                    advantage_of(ratios[1], ratios[0]),
                    self._distance(estimates),
                    self._distance(exact),
                )
            )
        return tuple(found)

    def _noisy(self, side: int, trial: int, source: NoiseSource, options: AuditOptions) -> FloatArray:
        """The answers of D (side 0) or D' with fresh counted noise, `[round, entry]`."""
        link, found = self.context.link, []
        seed = transcript_seed(options, f"audit-labels-{side}", trial)
        for place, index in enumerate(self.rounds):
            this = self.context.rounds[index]
            noise = link.counted_part(source(seed, this.index, this.design))
            seen = link.seen(this, self.shadows.pair[side, place][None], noise)
            found.append(seen[0] / link.gain(this)[0])
        return np.stack(found)

    def _others(self) -> tuple[Others, Others]:
        """The other devices as the attacker knows them, and as they are drawn: from different shadow devices."""
        device, count = self.context.device, self.context.plan.fleet.num_devices - 1
        weights = np.stack([self.context.rounds[index].design.weights[:, 0] for index in self.rounds])
        weight = np.delete(weights, device, axis=1).mean(axis=1) / weights[:, device] if count else weights[:, 0]
        fleet = self.shadows.answers["fleet"]
        return Others(count, fleet[::2], weight), Others(count, fleet[1::2], weight)

    def _drawn_others(self, count: int) -> IntArray:
        """Shadow devices in the place of the other devices, `[dataset, trial, device]`."""
        size = len(self.shadows.answers["fleet"][1::2])
        rng = stream(self.seed, "audit-labels-others")
        return np.asarray(rng.integers(size, size=(2, self.count, count)))

    def _distance(self, estimates: FloatArray) -> float:
        """Mean total variation of estimates `[dataset, trial, class]`."""
        truth = np.stack(self.shadows.shares)[:, None]
        return float(np.abs(estimates - truth).sum(axis=-1).mean() / 2)


def _sums(reader: Reader, others: Others, drawn: IntArray) -> FloatArray:
    """The part of the other devices in all readings, `[dataset, trial, reading]`."""
    each = reader.linear(others.contributions)
    return np.asarray(each[drawn].sum(axis=2))


def advantage_of(positive: FloatArray, negative: FloatArray) -> Interval:
    """True minus false positive rate of the test "positive above zero"; both rates' intervals hold together."""
    level = (1 + LEVEL) / 2
    true, false = (proportion(int((group > 0).sum()), len(group), level) for group in (positive, negative))
    return Interval(true.value - false.value, true.low - false.high, true.high - false.low)
