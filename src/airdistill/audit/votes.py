"""The recorded answers of a trusted aggregator: how many there are, and their noise, drawn again or by its variance.

Seeded noise is a function of the scenario's seed and the ledger entry (`redrawn`). The vote noise of the answered
samples and the noise of all checks must be what was recorded; noise that was weakened, left out or reused differs. Of
secure noise only the variance can be compared.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import gammaincinv

from airdistill.audit.redrawn import standard_normal
from airdistill.audit.released import Released
from airdistill.planning.trusted_uplink import TrustedUplink

_CHECKS, _VOTES = "threshold-noise", "vote-noise"
_SAME = 1e-6  # relative, of a variance


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
        # χ² of N draws with N degrees of freedom, as the sum of squares over their variance.
        least = 2 * gammaincinv(len(answers) / 2, chance) / len(answers)
        if checks < least * settings.threshold_noise**2:
            share = checks / settings.threshold_noise**2
            found.append(
                ("weak", f"has checks with {share:.4g} of their noise variance, at least {least:.4g} if sound")
            )
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
