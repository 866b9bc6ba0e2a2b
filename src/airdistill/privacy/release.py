"""Releases: what leaves the devices in one round, as data, device by device or by groups of identical devices.

A ledger's line of format 1 is a `Release`, and one of format 2 a `GroupedRelease`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from airdistill.arrays import BoolArray, FloatArray, IntArray, divide_or
from airdistill.files import jsonable
from airdistill.privacy.groups import Groups, column, numbers_of, only_keys, whole_number
from airdistill.privacy.sensitivity import SENSITIVITY_MODELS
from airdistill.privacy.trust import TRUST_MODELS

AS_BEFORE = "as before"
Cost = dict[tuple[str, str], FloatArray]  # by sensitivity model and trust model, `[device, row]` each


@dataclass(frozen=True)
class Release:
    """Round `round_index`: weights w, sensitivities s by model and counted noise c by trust model, `[device, row]`.

    A row is one vector: a class mean, a gradient, or all predictions on a public set. c is the variance per entry of
    the noise that protects the row, in units of the server's estimate: zero for a non-private release, infinite for a
    row that was not sent.

    With correlated noise c is the variance of the round's new noise, and a server that removes the noise it has seen
    also finds vectors of earlier rounds, with `carried_weights` `[device, row]`; None if the noise is independent.
    """

    round_index: int
    weights: FloatArray
    sensitivity: Mapping[str, FloatArray]
    counted_noise_var: Mapping[str, FloatArray]
    carried_weights: FloatArray | None = None

    @property
    def participants(self) -> IntArray:
        """The devices that sent a vector."""
        return np.flatnonzero(((self.weights > 0) & self._was_sent()).any(axis=1))

    @property
    def revealed_weights(self) -> FloatArray:
        """The weights with which the round reveals a device's vectors, earlier ones included, `[device, row]`."""
        return self.weights if self.carried_weights is None else self.weights + self.carried_weights

    def cost(self, model: str, trust: str) -> FloatArray:
        """(w s)²/c, `[device, row]`: what the round adds to μ² of a device."""
        return _price((self.revealed_weights * self.sensitivity[model]) ** 2, self.counted_noise_var[trust])

    def costs(self) -> Cost:
        """The cost under every sensitivity model and trust model, computed together."""
        shifts = {model: (self.revealed_weights * moved) ** 2 for model, moved in self.sensitivity.items()}
        names = itertools.product(self.sensitivity, self.counted_noise_var)
        return {(model, trust): _price(shifts[model], self.counted_noise_var[trust]) for model, trust in names}

    def problem(self, devices: IntArray | None = None) -> str | None:
        """Why this cannot be a release, with round, device, row, value and rule; None if it can.

        A negative variance would give budget back, and comparisons with NaN would never exceed one. `devices` are the
        names of the devices, if they are not counted from 0.
        """
        for (field, name), array in _arrays(self).items():
            once = _once(array)
            if once.size and once.min() >= 0 and once.max() < np.inf:  # NaN is neither
                continue
            if field == "counted_noise_var":
                sent = (self.weights > 0) & self._was_sent()
                wrong = ~(array >= 0) | (sent & np.isinf(array))
                rule = "must be positive, or 0 for a non-private release, or infinite for a row that was not sent"
            else:
                wrong, rule = ~((array >= 0) & np.isfinite(array)), "must be finite and not negative"
            if wrong.any():
                place, row = np.argwhere(wrong)[0]
                named = " under ".join(filter(None, (field, name)))
                device = place if devices is None else devices[place]
                value = f"row {row} of device {device} is {array[place, row]:.6g}"
                return f"round {self.round_index}: {named}: {value}; {rule}"
        return None

    def _was_sent(self) -> BoolArray:
        """Whether any trust model counts finite noise, `[device, row]`."""
        return np.asarray(np.any([np.isfinite(noise) for noise in self.counted_noise_var.values()], axis=0))

    def same_as(self, other: Release) -> bool:
        """To the last bit."""
        mine, theirs = _arrays(self), _arrays(other)
        same_arrays = mine.keys() == theirs.keys() and all(np.array_equal(mine[name], theirs[name]) for name in mine)
        return self.round_index == other.round_index and same_arrays

    def to_dict(self, before: Release | None = None) -> dict[str, Any]:
        """Convert to JSON values; an array that equals the one of the previous release is not repeated."""
        known = {} if before is None else _arrays(before)
        written: dict[str, Any] = {"round": self.round_index, "participants": self.participants.tolist()}
        for (field, name), array in _arrays(self).items():
            same = (field, name) in known and np.array_equal(known[field, name], array)
            value = AS_BEFORE if same else _shrunk(array)
            if name:
                written.setdefault(field, {})[name] = value
            else:
                written[field] = value
        ready: dict[str, Any] = jsonable(written)
        return ready

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any], shape: tuple[int, int], before: Release | None = None) -> Release:
        """What `to_dict` wrote, for so many devices and rows; `ValueError` if it cannot be a release."""

        def array(field: str, name: str, value: Any) -> FloatArray:
            if value == AS_BEFORE:
                if before is None:
                    raise ValueError(f"{field} refers to a previous release, and there is none")
                return _arrays(before)[field, name]
            full = [[np.inf if entry is None else entry for entry in row] for row in value]
            return np.broadcast_to(np.array(full, dtype=np.float64), shape)

        release = cls(
            int(stored["round"]),
            array("weights", "", stored["weights"]),
            {name: array("sensitivity", name, value) for name, value in stored["sensitivity"].items()},
            {name: array("counted_noise_var", name, value) for name, value in stored["counted_noise_var"].items()},
            array("carried_weights", "", stored["carried_weights"]) if "carried_weights" in stored else None,
        )
        problem = release.problem()
        if problem is not None:
            raise ValueError(problem)
        return release


@dataclass(frozen=True)
class GroupedRelease:
    """A release by groups of devices that are identical in it: in `kinds` each group stands as one device."""

    groups: Groups
    kinds: Release

    @classmethod
    def of(cls, release: Release, before: GroupedRelease | None = None) -> GroupedRelease:
        """The release of all devices by groups: those of the release `before` if they still mix no devices."""
        arrays = _arrays(release)
        groups = Groups.of(list(arrays.values()), None if before is None else before.groups)
        if groups.index is None:
            return cls(groups, release)
        return cls(groups, _made(release.round_index, {name: each[groups.first] for name, each in arrays.items()}))

    @property
    def round_index(self) -> int:
        return self.kinds.round_index

    def expanded(self) -> Release:
        """The release device by device."""
        if self.groups.index is None:
            return self.kinds
        return self._as_in(self.groups.index)

    def _as_in(self, index: IntArray | None) -> Release:
        """The kinds in the order of an index."""
        if index is None:
            return self.kinds
        return _made(self.round_index, {name: each[index] for name, each in _arrays(self.kinds).items()})

    def problem(self) -> str | None:
        """As `Release.problem`; of identical devices the first is named."""
        return self.kinds.problem(self.groups.first)

    def row_without_noise(self, device: int, model: str, trust: str) -> int | None:
        """The first row of a device that would be sent without any counted noise; None if there is none."""
        bare = np.flatnonzero(np.isinf(self.kinds.cost(model, trust)[self.groups.of_device(device)]))
        return int(bare[0]) if len(bare) else None

    def same_as(self, other: GroupedRelease) -> bool:
        """To the last bit, however the devices are grouped."""
        _, mine, theirs = self.groups.joined(other.groups)
        return self._as_in(mine).same_as(other._as_in(theirs))

    def line(self, format: int, before: GroupedRelease | None) -> dict[str, Any]:
        """What a ledger of this format writes, after the run's previous release."""
        if format == 2:
            return self.to_dict(before)
        return self.expanded().to_dict(None if before is None else before.expanded())

    @classmethod
    def from_line(
        cls, body: Mapping[str, Any], format: int, shape: tuple[int, int], before: GroupedRelease | None
    ) -> GroupedRelease:
        """The release in a ledger's line of this format; `ValueError` if it cannot be one."""
        if format == 2:
            return cls.from_dict({name: body[name] for name in body if name != "kind"}, shape, before)
        return cls.of(Release.from_dict(body, shape, None if before is None else before.expanded()), before)

    def to_dict(self, before: GroupedRelease | None = None) -> dict[str, Any]:
        """Convert to JSON values of format 2; what equals the previous release is not repeated."""
        alike = before is not None and _same_groups(before.groups, self.groups)
        known = _arrays(before.kinds) if before is not None and alike else {}
        groups = AS_BEFORE if alike else self.groups.to_dict()
        written: dict[str, Any] = {"round": self.round_index, "groups": groups}
        for (field, name), array in _arrays(self.kinds).items():
            same = (field, name) in known and np.array_equal(known[field, name], array)
            value = AS_BEFORE if same else column(array)
            if name:
                written.setdefault(field, {})[name] = value
            else:
                written[field] = value
        return written

    @classmethod
    def from_dict(
        cls, stored: Mapping[str, Any], shape: tuple[int, int], before: GroupedRelease | None = None
    ) -> GroupedRelease:
        """What `to_dict` wrote, for so many devices and rows; `ValueError` if it cannot be a release."""
        fields = {"round", "groups", "weights", "sensitivity", "counted_noise_var"}
        only_keys(stored, fields | ({"carried_weights"} & set(stored)), "a release")
        alike = stored["groups"] == AS_BEFORE
        if before is None and alike:
            raise ValueError("groups refers to a previous release, and there is none")
        groups = before.groups if before is not None and alike else Groups.from_dict(stored["groups"], shape[0])
        known = _arrays(before.kinds) if before is not None and alike else {}
        found: dict[tuple[str, str], FloatArray] = {}
        for (field, name), value in _columns(stored):
            if value == AS_BEFORE and (field, name) not in known:
                raise ValueError(f"{field} refers to a previous release with the same groups, and there is none")
            found[field, name] = (
                known[field, name]
                if value == AS_BEFORE
                else numbers_of(value, (groups.num_groups, shape[1]), " under ".join(filter(None, (field, name))))
            )
        release = cls(groups, _made(whole_number(stored["round"], "round"), found))
        problem = release.problem()
        if problem is not None:
            raise ValueError(problem)
        return release


def _columns(stored: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], Any]]:
    """Every column of a release of format 2, with the field and name of its array."""
    for field in ("weights", "carried_weights"):
        if field in stored:
            yield (field, ""), stored[field]
    for field, models in (("sensitivity", SENSITIVITY_MODELS), ("counted_noise_var", tuple(TRUST_MODELS))):
        if not isinstance(stored[field], Mapping) or not set(models) <= set(stored[field]):
            raise ValueError(f"{field}: must have a column for each of {', '.join(models)}")
        yield from (((field, name), value) for name, value in stored[field].items())


def _same_groups(one: Groups, other: Groups) -> bool:
    if one is other or one.index is None or other.index is None:
        return one is other or one.index is other.index
    return bool(np.array_equal(one.index, other.index))


def _price(squared_shift: FloatArray, counted_noise_var: FloatArray) -> FloatArray:
    """(w s)²/c: infinite without noise, and 0 for what does not move."""
    once = _once(counted_noise_var)
    if once.size and once.min() > 0:
        return np.asarray(squared_shift / once)
    price = divide_or(squared_shift, counted_noise_var, np.inf)
    return np.where(squared_shift > 0, price, 0.0)


def _once(array: FloatArray) -> FloatArray:
    """The numbers of one device if they are the same for all, `[1, row]`."""
    return array[:1] if array.strides[0] == 0 else array


def _made(round_index: int, arrays: Mapping[tuple[str, str], FloatArray]) -> Release:
    """The release of these arrays, as `_arrays` names them."""

    def named(wanted: str) -> dict[str, FloatArray]:
        return {name: array for (field, name), array in arrays.items() if field == wanted}

    carried = arrays.get(("carried_weights", ""))
    return Release(round_index, arrays["weights", ""], named("sensitivity"), named("counted_noise_var"), carried)


def _arrays(release: Release) -> dict[tuple[str, str], FloatArray]:
    named = {("weights", ""): release.weights}
    if release.carried_weights is not None:
        named["carried_weights", ""] = release.carried_weights
    named |= {("sensitivity", name): array for name, array in release.sensitivity.items()}
    return named | {("counted_noise_var", name): array for name, array in release.counted_noise_var.items()}


def _shrunk(array: FloatArray) -> FloatArray:
    """One row if all devices are equal, one column if all rows are: thousands of devices do not repeat a value."""
    if (array == array[:1]).all():
        array = array[:1]
    return array[:, :1] if (array == array[:, :1]).all() else array
