"""The accounts of a certificate: what each device asked for and what its releases cost, by groups of identical ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from airdistill.arrays import BoolArray, FloatArray
from airdistill.files import jsonable
from airdistill.privacy.groups import Groups
from airdistill.privacy.ledger import Ledger
from airdistill.privacy.ledger_header import LedgerHeader
from airdistill.privacy.sensitivity import SENSITIVITY_MODELS
from airdistill.privacy.statements import CertifiedRun
from airdistill.privacy.targets import TOLERANCE, paper_epsilon, without_rounding


@dataclass(frozen=True)
class DeviceAccount:
    """One device: its target, and what its releases cost under the declared and all other models.

    The guarantee is (`evidence`, `delta_in_all`): ε by a bound that is valid for this run, and δ with the probability
    of a channel error beyond its limit.
    """

    device: int
    epsilon_asked: float
    delta: float
    delta_in_all: float
    spent: float
    paper_formula: float
    by_model: dict[str, dict[str, float]]
    evidence: float

    @property
    def kept(self) -> bool:
        """Whether the ε and the δ that the guarantee rests on stay within the target."""
        return bool(_kept(self))


@dataclass(frozen=True)
class DeviceAccounts(Sequence[DeviceAccount]):
    """The accounts of all devices: a sequence of them, and the same numbers as columns `[group]`."""

    groups: Groups
    epsilon_asked: FloatArray
    delta: FloatArray
    delta_in_all: FloatArray
    spent: FloatArray
    paper_formula: FloatArray
    by_model: Mapping[str, Mapping[str, FloatArray]]
    evidence: FloatArray

    def __len__(self) -> int:
        return self.groups.num_devices

    @overload
    def __getitem__(self, device: int) -> DeviceAccount: ...

    @overload
    def __getitem__(self, device: slice) -> Sequence[DeviceAccount]: ...

    def __getitem__(self, device: int | slice) -> DeviceAccount | Sequence[DeviceAccount]:
        which = range(len(self))[device]
        return self._account(which) if isinstance(which, int) else [self._account(each) for each in which]

    def _account(self, device: int) -> DeviceAccount:
        group = self.groups.of_device(device)
        return DeviceAccount(
            device=device,
            epsilon_asked=float(self.epsilon_asked[group]),
            delta=float(self.delta[group]),
            delta_in_all=float(self.delta_in_all[group]),
            spent=float(self.spent[group]),
            paper_formula=float(self.paper_formula[group]),
            by_model={m: {t: float(each[group]) for t, each in trusts.items()} for m, trusts in self.by_model.items()},
            evidence=float(self.evidence[group]),
        )

    @property
    def kept(self) -> BoolArray:
        """The same for every group, `[group]`."""
        return np.asarray(_kept(self))

    def furthest(self, reached: FloatArray, target: FloatArray) -> DeviceAccount | None:
        """Of the devices that asked for privacy the first one furthest above a target; None if no device is above."""
        over = np.isfinite(self.epsilon_asked) & (reached > target * (1 + TOLERANCE))
        if not over.any():
            return None
        return self._account(int(self.groups.first[np.argmax(np.where(over, reached / target, 0.0))]))

    def listed(self, verdicts: Sequence[str]) -> list[dict[str, Any]]:
        """JSON values of format 1: one object for each device, from the verdicts of groups."""
        listed: list[dict[str, Any]] = jsonable(
            [
                {
                    "device": account.device,
                    "asked": {"epsilon": account.epsilon_asked, "delta": account.delta},
                    "guaranteed": {"epsilon": account.evidence, "delta": account.delta_in_all},
                    "spent": account.spent,
                    "paper_formula": account.paper_formula,
                    "epsilon": account.by_model,
                    "verdict": verdicts[self.groups.of_device(account.device)],
                }
                for account in self
            ]
        )
        return listed

    def in_columns(self, verdicts: Sequence[str]) -> dict[str, Any]:
        """JSON values of format 2: which device is in which group, and columns with a number for each group."""
        return {
            **self.groups.to_dict(),
            "asked": {"epsilon": _numbers(self.epsilon_asked), "delta": _numbers(self.delta)},
            "guaranteed": {"epsilon": _numbers(self.evidence), "delta": _numbers(self.delta_in_all)},
            "spent": _numbers(self.spent),
            "paper_formula": _numbers(self.paper_formula),
            "epsilon": {m: {t: _numbers(each) for t, each in trusts.items()} for m, trusts in self.by_model.items()},
            "verdict": list(verdicts),
        }


def _kept(account: DeviceAccount | DeviceAccounts) -> Any:
    within = account.evidence <= account.epsilon_asked * (1 + TOLERANCE)
    return within & (account.delta_in_all <= account.delta * (1 + TOLERANCE))


def _numbers(values: FloatArray) -> list[float | None]:
    return [*values.tolist()] if np.isfinite(values).all() else jsonable(values)


def accounts_of(ledger: Ledger, runs: Sequence[CertifiedRun]) -> DeviceAccounts:
    """The accounts of all devices in a ledger."""
    header = ledger.header
    # Devices with the same targets that released the same have the same account.
    groups, _, _ = header.groups.joined(ledger.spending.groups)
    first = groups.first
    by_model = {
        model: {trust: ledger.epsilon(model, trust)[first] for trust in ledger.trust_names}
        for model in SENSITIVITY_MODELS
    }
    lemma1 = ledger.spending.squared_mu("paper", "receiver_noise", relabel=False)[first]
    asked, in_all = _deltas(header, header.delta[first], runs)
    return DeviceAccounts(
        groups,
        epsilon_asked=header.epsilon[first],
        delta=asked,
        delta_in_all=in_all,
        spent=by_model[header.sensitivity][header.trust],
        paper_formula=paper_epsilon(np.sqrt(lemma1), header.delta[first]),
        by_model=by_model,
        evidence=by_model[_valid_model(header, runs)][header.trust],
    )


def _valid_model(header: LedgerHeader, runs: Sequence[CertifiedRun]) -> str:
    """The sensitivity model that the verdict uses: the declared one, if its bound can be valid for these runs.

    A bound that assumes an untrained model says nothing of a trained one, for which the bound of whole devices is
    valid. Lemma 1 is not a valid bound; one record moves at least the class mean of a model that was not trained on it.
    """
    if any(run.assumes_untrained_model for run in runs):
        return "device"
    return "class_mean" if header.sensitivity == "paper" else header.sensitivity


def _deltas(header: LedgerHeader, delta: FloatArray, runs: Sequence[CertifiedRun]) -> tuple[FloatArray, FloatArray]:
    """The δ that was asked for and the δ that is guaranteed, from the header's, `[group]`.

    The header's δ is that of the noise. A plan reserves a part of the target for channel errors beyond their limit, of
    its own run and of earlier ones. They are independent of the noise, and so the probabilities of all runs add to δ.
    """
    reserved = header.reserved_delta
    excess = sum(run.excess_delta or 0.0 for run in runs)
    # Adding what was subtracted leaves a rounding error, which must not be rounded up.
    asked = np.array([float(f"{each + reserved:.12g}") for each in delta]) if reserved else delta
    return asked, without_rounding(np.minimum(1.0, delta + excess), asked)
