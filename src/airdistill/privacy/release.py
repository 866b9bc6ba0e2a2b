"""What leaves the devices in one round, as data: enough to say what it costs whom under every model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from airdistill.arrays import FloatArray, IntArray, divide_or
from airdistill.jsonable import jsonable

TRUST_MODELS = ("receiver_noise", "fleet_noise", "own_noise")
AS_BEFORE = "as before"


@dataclass(frozen=True)
class Release:
    """Round `round_index`: weights w, sensitivities s by model and counted noise c by trust model, `[device, row]`.

    A row is a class's knowledge, or a gradient. c is the variance per entry of what hides the row, in units of the
    server's estimate: zero where numbers go out as they are, infinite where a row was not sent.
    """

    round_index: int
    weights: FloatArray
    sensitivity: Mapping[str, FloatArray]
    counted_noise_var: Mapping[str, FloatArray]

    @property
    def participants(self) -> IntArray:
        """The devices that sent something of their own."""
        sent = np.any([np.isfinite(noise) for noise in self.counted_noise_var.values()], axis=0)
        return np.flatnonzero(((self.weights > 0) & sent).any(axis=1))

    def cost(self, model: str, trust: str) -> FloatArray:
        """(w s)²/c, `[device, row]`: what the round adds to a device's μ²."""
        squared_shift = (self.weights * self.sensitivity[model]) ** 2
        price = divide_or(squared_shift, self.counted_noise_var[trust], np.inf)
        return np.where(squared_shift > 0, price, 0.0)

    def same_as(self, other: Release) -> bool:
        """To the last bit."""
        return self.round_index == other.round_index and all(
            np.array_equal(mine, theirs)
            for mine, theirs in zip(_arrays(self).values(), _arrays(other).values(), strict=True)
        )

    def to_dict(self, before: Release | None = None) -> dict[str, Any]:
        """Ready for JSON; an array that is as in the release before it is not written out again."""
        known = {} if before is None else _arrays(before)
        written: dict[str, Any] = {"round": self.round_index, "participants": self.participants.tolist()}
        for (field, name), array in _arrays(self).items():
            same = (field, name) in known and np.array_equal(known[field, name], array)
            value = AS_BEFORE if same else jsonable(_shrunk(array))
            if name:
                written.setdefault(field, {})[name] = value
            else:
                written[field] = value
        return written

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any], shape: tuple[int, int], before: Release | None = None) -> Release:
        """What `to_dict` wrote, for so many devices and rows."""

        def array(field: str, name: str, value: Any) -> FloatArray:
            if value == AS_BEFORE:
                if before is None:
                    raise ValueError(f"{field} is said to be as before, but nothing was before")
                return _arrays(before)[field, name]
            full = [[np.inf if entry is None else entry for entry in row] for row in value]
            return np.broadcast_to(np.array(full, dtype=np.float64), shape)

        return cls(
            int(stored["round"]),
            array("weights", "", stored["weights"]),
            {name: array("sensitivity", name, value) for name, value in stored["sensitivity"].items()},
            {name: array("counted_noise_var", name, value) for name, value in stored["counted_noise_var"].items()},
        )


def _arrays(release: Release) -> dict[tuple[str, str], FloatArray]:
    named = {("weights", ""): release.weights}
    named |= {("sensitivity", name): array for name, array in release.sensitivity.items()}
    return named | {("counted_noise_var", name): array for name, array in release.counted_noise_var.items()}


def _shrunk(array: FloatArray) -> FloatArray:
    """One row if all devices have the same, one column if all rows have: thousands of devices need not say it each."""
    if (array == array[:1]).all():
        array = array[:1]
    return array[:, :1] if (array == array[:, :1]).all() else array
