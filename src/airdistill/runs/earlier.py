"""The models with which an ended run's devices start another run, `airdistill run --after RUN`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airdistill.errors import InputError
from airdistill.files import json_value
from airdistill.learning.fits import digest_of
from airdistill.planning.plan import Plan
from airdistill.privacy.ledger_header import LedgerHeader
from airdistill.runs.accounts import trusted_ledger
from airdistill.runs.checkpoint import newest_checkpoint
from airdistill.runs.folder import PLAN, RunError
from airdistill.runs.folder import digest_of as digest_of_text
from airdistill.runs.record import ended_run
from airdistill.schemes.base import Scheme

if TYPE_CHECKING:
    from torch import Tensor

FIELD = "--after"
AFTER = "after"  # a key of run.json, and of the terms in a ledger's header


@dataclass(frozen=True)
class EarlierModels:
    """The models of an ended run by their names in checkpoints, the run's plan, and its ledger's header."""

    folder: Path
    tensors: dict[str, Tensor]
    plan: Plan
    header: LedgerHeader

    @classmethod
    def of(cls, folder: Path) -> EarlierModels:
        """The models of the run in this folder, which must have ended; optimisers start anew."""
        last, checkpoint = ended_run(folder).summary["rounds"], newest_checkpoint(folder)
        if checkpoint is None or checkpoint.round_index != last:
            raise RunError(f"{folder}: its last checkpoint was removed or is damaged, and the models with it")
        models = {name: tensor for name, tensor in checkpoint.tensors.items() if name.partition(".")[0].isdigit()}
        plan = Plan.from_dict(json_value((folder / PLAN).read_bytes()))
        return cls(folder, models, plan, trusted_ledger(folder).header)

    @property
    def digest(self) -> str:
        return digest_of(self.tensors)

    @property
    def server_sent_them(self) -> bool:
        """Whether the server broadcast its model and the devices took it over, unless no transmission arrived: they
        have then kept models of their own, which an earlier run may have trained."""
        public = self.plan.scenario.public
        return self.plan.uplink.kind == "feature_means" and public is not None and public.broadcast == "model"

    def continued(self, header: LedgerHeader) -> LedgerHeader:
        """The header of a run that starts with these models. Its noise is not that of the same run without them, which
        may have continued a copy of the same ledger."""
        key = digest_of_text(f"{header.terms['noise_key']} {AFTER}".encode())
        return replace(header, terms={**header.terms, AFTER: self.digest, "noise_key": key})

    def check_fits(self, scheme: Scheme, plan: Plan, header: LedgerHeader) -> None:
        """Refuse a run of other devices, data, models or seed, or one whose guarantee needs untrained models."""
        before, now = self.plan.scenario, plan.scenario
        self._check_same("fleet.devices", before.num_devices, now.num_devices)
        self._check_same("seed", before.seed, now.seed)
        self._check_same("learning.model", sorted(set(before.model_names)), sorted(set(now.model_names)))
        if before.model_names != now.model_names:
            raise self._refused("every device must have the same model in both runs: keep the order of fleet.groups")
        held = [each.terms.get("device_data") for each in (self.header, header)]
        if held[0] is None or held[0] != held[1]:
            rule = "its devices must hold the same samples; change [data], [public] and seed in a run of its own"
            raise self._refused(rule)
        if scheme.one_model or "1." not in {name[:2] for name in self.tensors}:
            raise self._refused("both schemes must give every device a model of its own")
        _check_guarantee(scheme, plan)

    def _check_same(self, field: str, before: Any, now: Any) -> None:
        if before != now:
            raise self._refused(f"{field} was {before} in that run and is {now}; set it to {before}")

    def _refused(self, rule: str) -> InputError:
        return InputError(FIELD, str(self.folder), rule)


def _check_guarantee(scheme: Scheme, plan: Plan) -> None:
    """A bound for one record of class means is that of models which were not trained on it; these were."""
    sensitivity, payload, public = plan.scenario.privacy.sensitivity, plan.uplink.payload, plan.scenario.public
    if scheme.releases == "private" and sensitivity != "device" and not payload.neighbours.record_is_exact:
        rule = f'with {FIELD} models were trained on the records before they send anything; set it to "device"'
        raise InputError("privacy.sensitivity", sensitivity, rule)
    if public is not None and public.later == "features":
        rule = f'the first round is of the public embedding: leave {FIELD} out and use --ledger, or set it to "repeat"'
        raise InputError("public.later", "features", rule)
