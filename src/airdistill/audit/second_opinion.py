"""A second opinion: the releases of a ledger as dp_accounting events, and the ε of Google's accountant."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from airdistill.arrays import FloatArray
from airdistill.errors import AirDistillError
from airdistill.privacy.ledger import Ledger
from airdistill.privacy.neighbours import neighbours_from
from airdistill.privacy.sensitivity import JOINT_MODELS
from airdistill.runs.folder import LEDGER

if TYPE_CHECKING:
    from dp_accounting import DpEvent


def dp_event(ledger: Ledger, device: int, model: str | None = None, trust: str | None = None) -> DpEvent:
    """All releases of a device as a composition of Gaussian mechanisms, by default under the declared models.

    A round is one mechanism with noise multiplier 1/√(Σ (w s)²/c) over the rows that differ between neighbours. For
    per-class models these are the rows of highest cost over the whole run.
    """
    dp_accounting = _library()
    costs = _costs_by_release(ledger, device, model or ledger.header.sensitivity, trust or ledger.header.trust)
    if np.isinf(costs).any():
        return dp_accounting.NonPrivateDpEvent()
    if is_secretly_sampled(ledger):
        return _poisson_sampled(ledger, costs)
    counted = Counter(float(1 / np.sqrt(cost)) for cost in costs if cost > 0)
    each = [
        dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(multiplier), count)
        for multiplier, count in counted.items()
    ]
    return dp_accounting.ComposedDpEvent(each) if each else dp_accounting.NoOpDpEvent()


def is_secretly_sampled(ledger: Ledger) -> bool:
    """Whether participation in this run is Poisson sampled and secret from the server."""
    return bool(ledger.header.terms.get("participation_hidden", False))


def _poisson_sampled(ledger: Ledger, costs: FloatArray) -> DpEvent:
    """Poisson-sampled rounds under the replace-one relation, where a record is the whole data of a device.

    In dp_accounting the multiplier refers to the norm m of a vector. Two opposite vectors differ by 2m; knowledge has
    no negative entries and differs by √2 m, and so the result is an upper bound for it. Earlier runs are counted as if
    the server knew the participants.
    """
    dp_accounting = _library()
    probability = float(ledger.header.terms["participation"])
    distance = neighbours_from(ledger.header.payload, ledger.header.terms).unit_distance  # in units of the norm
    probabilities = [1.0] * ledger.num_earlier + [probability] * (len(costs) - ledger.num_earlier)
    counted = Counter(
        (each, float(distance / np.sqrt(cost))) for each, cost in zip(probabilities, costs, strict=True) if cost > 0
    )
    events = [
        dp_accounting.SelfComposedDpEvent(
            dp_accounting.PoissonSampledDpEvent(each, dp_accounting.GaussianDpEvent(multiplier)), count
        )
        for (each, multiplier), count in counted.items()
    ]
    return dp_accounting.ComposedDpEvent(events) if events else dp_accounting.NoOpDpEvent()


def pld_epsilon(event: DpEvent, delta: float, replaced: bool = False) -> float:
    """ε by dp_accounting's PLD accountant; `replaced` selects the replace-one relation, for sampled events."""
    from dp_accounting.pld.pld_privacy_accountant import NeighborRel, PLDAccountant

    relation = NeighborRel.REPLACE_ONE if replaced else NeighborRel.ADD_OR_REMOVE_ONE
    return float(PLDAccountant(relation).compose(event).get_epsilon(delta))


def opinion_in_words(folder: Path) -> str:
    """One sentence with the worst device's ε by the ledger and by dp_accounting."""
    ledger = Ledger.read(folder / LEDGER)
    spent = ledger.epsilon()
    device = int(np.argmax(spent))
    delta = float(ledger.header.delta[device])
    theirs = pld_epsilon(dp_event(ledger, device), delta, is_secretly_sampled(ledger))
    note = " (for continuous noise; the ledger accounts for discrete noise)" if ledger.header.noise == "secure" else ""
    if (
        is_secretly_sampled(ledger)
        and neighbours_from(ledger.header.payload, ledger.header.terms).forbids_negative_entries
    ):
        note = " (for vectors of any direction; the ledger uses that knowledge has no entry below zero)"
    ours = f"ε = {spent[device]:.6g} by the ledger"
    return f"Second opinion on device {device}: {ours}, {theirs:.6g} by dp_accounting{note}."


def _costs_by_release(ledger: Ledger, device: int, model: str, trust: str) -> FloatArray:
    """μ² of every release, `[release]`."""
    by_rows: dict[str, list[FloatArray]] = {}
    for rows, release in ledger.history():
        by_rows.setdefault(rows, []).append(release.cost(model, trust)[device])
    moved = [_moved(np.stack(costs), model, ledger.header.relabel) for costs in by_rows.values()]
    return np.concatenate([np.zeros(0), *moved])


def _moved(costs: FloatArray, model: str, relabel: bool) -> FloatArray:
    """Cost of the rows that differ between neighbours, `[release]`, from `[release, row]`."""
    if model in JOINT_MODELS:
        return np.asarray(costs.sum(axis=1))
    num_moved = 2 if relabel else 1
    costliest = np.argsort(costs.sum(axis=0))[-num_moved:]
    return np.asarray(costs[:, costliest].sum(axis=1))


def _library() -> Any:
    try:
        import dp_accounting
    except ImportError as error:
        raise AirDistillError("a second opinion needs dp-accounting: pip install 'airdistill[accounting]'") from error
    return dp_accounting
