"""What a designed round will release."""

from __future__ import annotations

import numpy as np

from airdistill.arrays import ComplexArray
from airdistill.codesign.transceiver import RoundDesign
from airdistill.codesign.uplink import Uplink
from airdistill.privacy.release import TRUST_MODELS, Release
from airdistill.privacy.sensitivity import SENSITIVITY_MODELS


def release_of(uplink: Uplink, design: RoundDesign, channel: ComplexArray, round_index: int) -> Release:
    """With the noise that the gains of this design really send."""
    return Release(
        round_index,
        design.weights,
        {model: uplink.sensitivity(model, round_index) for model in SENSITIVITY_MODELS},
        uplink.noise_by_trust(design, channel),
    )


def bare_release(uplink: Uplink, round_index: int) -> Release:
    """Numbers as they are, of everybody, with nothing to hide them."""
    weights = uplink.weights(round_index)
    return Release(
        round_index,
        weights,
        {model: uplink.sensitivity(model, round_index) for model in SENSITIVITY_MODELS},
        {trust: np.zeros_like(weights) for trust in TRUST_MODELS},
    )
