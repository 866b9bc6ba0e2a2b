"""The recorded answers of a trusted aggregator: how many there are, and their noise, drawn again or by its variance.

Seeded noise is a function of the scenario's seed and the ledger entry (`redrawn`). The vote noise of the answered
samples and the noise of all checks must be what was recorded; noise that was weakened, left out or reused differs. Of
secure noise only the variance can be compared, with the tails of discrete Gaussians.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from airdistill.audit.redrawn import standard_normal
from airdistill.audit.released import Released
from airdistill.planning.trusted_uplink import TrustedUplink

_CHECKS, _VOTES = "threshold-noise", "vote-noise"
_SAME = 1e-6  # relative, of a variance
_REACH = 12.0  # standard deviations beyond which a discrete Gaussian has no weight
_RATES = (1e-3, 1e4, 200)  # of Chernoff's bound, over the variance: smallest, largest, number


def what_is_wrong_with_votes(
    this: Released, votes: dict[str, Any], measured: float, chance: float
) -> list[tuple[str, str]] | None:
    """What contradicts the plan, with its kind (`received`); None if a version before 0.2 recorded the round.

    `measured` is the recorded variance of the noise of a mean vote, and `chance` the probability of a false alarm.
    """
    if "answers" not in votes:
        return None
    assert isinstance(this.plan.uplink, TrustedUplink)
    settings, fleet = this.plan.uplink.payload.settings, this.plan.fleet
    answers = np.array(votes["answers"], dtype=np.int64)
    answered, found = answers >= 0, []
    if len(answers) != settings.num_queries or answered.sum() > settings.most_answers:
        counted = f"{answered.sum()} answers to {len(answers)} queries"
        planned = f"{settings.most_answers} to {settings.num_queries} at most"
        found.append(("predicted", f"has {counted}, and the plan {planned}"))
    if answered.sum() != votes["answered"]:
        found.append(("tables", f"keeps {answered.sum()} answers, recorded as {votes['answered']}"))
    checks = float(votes["check_noise_var"])
    if this.plan.scenario.privacy.noise == "secure":
        in_votes = fleet.num_devices**2 * measured
        for what, deviation, variance, num_draws in (
            ("checks", settings.threshold_noise, checks, len(answers)),
            ("votes", settings.vote_noise, in_votes, int(answered.sum()) * fleet.num_classes),
        ):
            if chance_of_less(deviation, num_draws, num_draws * variance) < chance:
                share = variance / deviation**2
                found.append(("weak", f"has {what} with {share:.4g} of their noise variance in {num_draws} draws"))
        return found
    if found:
        return found
    drawn = settings.threshold_noise * standard_normal(this, _CHECKS, (len(answers),))
    noise = settings.vote_noise * standard_normal(this, _VOTES, (len(answers), fleet.num_classes))
    expected = {
        "of checks": (checks, float(np.mean(drawn**2))),
        "of votes": (measured, float(np.mean((noise[answered] / fleet.num_devices) ** 2)) if answered.any() else 0.0),
    }
    for what, (recorded, redrawn) in expected.items():
        if not np.isclose(recorded, redrawn, rtol=_SAME, atol=0.0):
            stated = f"records a variance {what} of {recorded:.6g}, and the noise drawn again has {redrawn:.6g}"
            found.append(("redrawn", stated))
    return found


def chance_of_less(deviation: float, num_draws: int, sum_of_squares: float) -> float:
    """A bound on the probability that the squares of so many discrete Gaussians on the integers sum to this or less.

    Chernoff's: P(S ≤ s) ≤ exp(λs) E[exp(−λx²)]^n for every λ ≥ 0. A χ² distribution would not do: a few draws of small
    deviation may all be 0.
    """
    if num_draws == 0 or deviation == 0:
        return 1.0
    reach = np.arange(1 + np.ceil(_REACH * deviation))
    weight = np.where(reach > 0, 2.0, 1.0) * np.exp(-((reach / deviation) ** 2) / 2)
    rate = np.concatenate([[0.0], np.geomspace(*_RATES)]) / deviation**2
    mean = np.exp(-rate[:, None] * reach**2) @ weight / weight.sum()
    return float(np.exp(np.min(rate * sum_of_squares + num_draws * np.log(mean))))
