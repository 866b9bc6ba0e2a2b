"""Checks of a user's own payload: planner, ledger and certificate take what it states of itself for granted."""

from __future__ import annotations

import inspect
from numbers import Integral
from typing import Any

import numpy as np

from airdistill.errors import Described, InputError
from airdistill.planning.payloads import PAYLOADS, Payload, payload_named
from airdistill.privacy.neighbours import BUILT_IN, Neighbours
from airdistill.privacy.sensitivity import SENSITIVITY_MODELS


def check_payload_class(payload: type[Payload]) -> None:
    """Raise `InputError` unless a class names itself in `kind`, states its own neighbours and has a protocol.

    A run looks the payload up by `kind`: the class that it finds is the one that devices send.
    """
    name, kind = Described(payload.__qualname__), getattr(payload, "kind", None)
    if not isinstance(kind, str):
        raise InputError("payload", name, "must have a `kind`, which names it as package.module:Class")
    found = payload_named(kind)
    if not _is_same(found, payload):
        rule = f"its `kind` is {kind!r}, which is {found.__qualname__}: it must name the class itself"
        raise InputError("payload", name, rule)
    if kind in PAYLOADS:
        return
    neighbours = getattr(payload, "neighbours", None)
    if not isinstance(neighbours, Neighbours):
        raise InputError("payload", kind, "must have `neighbours`, an airdistill.privacy.neighbours.Neighbours")
    if neighbours != BUILT_IN.get(neighbours.payload, neighbours):
        rule = f'its `neighbours` are called "{neighbours.payload}" as a built-in payload\'s: give them another name'
        raise InputError("payload", kind, rule)
    for stated in ("relation", "basis"):
        if unknown := [model for model in getattr(neighbours, stated) if model not in SENSITIVITY_MODELS]:
            rule = f"must name sensitivity models, of {', '.join(SENSITIVITY_MODELS)}, and not {unknown[0]}"
            raise InputError("payload", kind, f"the `{stated}` of its `neighbours` {rule}")
    if inspect.isabstract(payload) or payload.protocol is Payload.protocol:
        missing = ", ".join(sorted(payload.__abstractmethods__)) or "protocol"
        raise InputError("payload", kind, f"must define {missing}")


def check_payload(payload: Payload) -> None:
    """Raise `InputError` unless the sizes and weights that a user's own payload states can be sent and counted."""
    if payload.kind in PAYLOADS:
        return
    for name in ("num_rows", "vector_length"):
        value: Any = getattr(payload, name)
        if not isinstance(value, Integral) or value < 1:
            raise InputError("payload", payload.kind, f"its `{name}` is {value!r}: must be a whole number from 1 on")
    for name in ("largest_norm", "diameter"):
        value = getattr(payload, name)
        if not (np.ndim(value) == 0 and np.isreal(value) and np.isfinite(value) and value > 0):
            raise InputError("payload", payload.kind, f"its `{name}` is {value!r}: must be finite and above 0")
    weights, shape = payload.nominal_weights, (payload.fleet.num_devices, payload.num_rows)
    if np.shape(weights) != shape or not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any(axis=0).all():
        rule = f"its `nominal_weights` must have shape [device, row] = {list(shape)}, not below 0, with a sum above 0"
        raise InputError("payload", payload.kind, rule)


def _is_same(found: type[Payload], payload: type[Payload]) -> bool:
    """Whether two classes have one source; a script that is also imported has each class twice."""
    by_name = found.__qualname__ == payload.__qualname__ and "__main__" in (found.__module__, payload.__module__)
    return found is payload or by_name
