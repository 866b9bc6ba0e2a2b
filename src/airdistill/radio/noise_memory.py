"""The memory of correlated noise: what every device keeps of the noise that it added in earlier rounds."""

from __future__ import annotations

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.errors import AirDistillError
from airdistill.planning.plan import Plan
from airdistill.privacy.correlation import Correlation


class NoiseMemory:
    """Turns each round's new noise z into E⁻¹z, device by device. A resumed run restores its `state`."""

    def __init__(self, correlation: Correlation) -> None:
        self.correlation = correlation
        self.round_index = 0  # the last round that it has seen
        self._buffers: list[FloatArray] = []

    @classmethod
    def of(cls, plan: Plan) -> NoiseMemory | None:
        """An empty memory for a run of a plan; None if its noise is independent."""
        return None if plan.uplink.correlation is None else cls(plan.uplink.correlation)

    def correlated(self, round_index: int, new: FloatArray) -> FloatArray:
        """The noise of the next round, scaled to variance 1, from new standard Gaussian draws `[device, row, entry]`.

        Raise `AirDistillError` if a round is left out or repeated: its noise would not cancel what it should.
        """
        if round_index != self.round_index + 1:
            rule = f"its correlated noise follows that of round {self.round_index}; play the rounds in turn, each once"
            raise AirDistillError(f"round {round_index}: {rule}")
        noise = new - self.correlation.recalled(self._buffers)
        self._buffers = self.correlation.remembered(self._buffers, noise)
        self.round_index = round_index
        return np.asarray(noise / np.sqrt(self.correlation.noise_variance(round_index)[-1]))

    def state(self) -> dict[str, FloatArray]:
        """The buffers by name."""
        return {str(place): np.asarray(buffer) for place, buffer in enumerate(self._buffers)}

    def restore(self, round_index: int, state: dict[str, FloatArray]) -> None:
        """Restore the state after a round."""
        self.round_index = round_index
        self._buffers = [state[str(place)] for place in range(len(state))]
