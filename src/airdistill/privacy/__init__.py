"""Privacy guarantees and the noise they require: sensitivity models, accountants, ledger and certificate."""

from airdistill.privacy.gaussian import gaussian_epsilon, gaussian_mu, paper_mu
from airdistill.privacy.sensitivity import (
    TrajectoryDynamics,
    aggregation_weights,
    knowledge_sensitivity,
    required_noise_var,
)
from airdistill.privacy.targets import epsilon_after, target_mu

__all__ = [
    "TrajectoryDynamics",
    "aggregation_weights",
    "epsilon_after",
    "gaussian_epsilon",
    "gaussian_mu",
    "knowledge_sensitivity",
    "paper_mu",
    "required_noise_var",
    "target_mu",
]
