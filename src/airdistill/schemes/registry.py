"""Schemes by name. A built-in scheme is one class and one line here."""

from __future__ import annotations

import inspect
import re

from airdistill import DEFAULT_SCHEME
from airdistill.errors import InputError
from airdistill.planning.plan import Plan
from airdistill.plugins import load_object
from airdistill.scenario.model import NAME_PATTERN, Scenario
from airdistill.schemes.base import Scheme
from airdistill.schemes.distillation import (
    AirDistill,
    FdErrorFree,
    LocalOnly,
    OrthogonalFd,
    OtaFd,
    OtaFdAntennas,
    OtaFdFixed,
)
from airdistill.schemes.federated import FedAvg, FedSgd, OtaFl, OtaFlFixed, OtaFlSampled
from airdistill.schemes.planning import as_run_by, plan_scheme
from airdistill.schemes.public_set import AirDistillProxy, OtaProxyFd, ProxyFd, SelectiveFd

SCHEMES: dict[str, type[Scheme]] = {
    scheme.name: scheme
    for scheme in (
        AirDistill,
        OtaFd,
        OtaFdFixed,
        OtaFdAntennas,
        OrthogonalFd,
        AirDistillProxy,
        OtaProxyFd,
        FdErrorFree,
        ProxyFd,
        SelectiveFd,
        LocalOnly,
        OtaFl,
        OtaFlFixed,
        OtaFlSampled,
        FedSgd,
        FedAvg,
    )
}


def load_scheme(reference: str) -> Scheme:
    """Load a scheme by name, or a user's own by `package.module:Class`."""
    if reference in SCHEMES:
        return SCHEMES[reference]()
    if ":" not in reference:
        rule = f"must be one of {', '.join(SCHEMES)}, or your own as package.module:Class"
        raise InputError("--scheme", reference, rule)
    found = load_object(reference, "--scheme")
    if not (isinstance(found, type) and issubclass(found, Scheme)):
        raise InputError("--scheme", reference, "must be a class derived from airdistill.schemes.Scheme")
    if inspect.isabstract(found) or not re.fullmatch(NAME_PATTERN, str(getattr(found, "name", ""))):
        raise InputError("--scheme", reference, "must have a `name` fit for a folder, and a method `play`")
    return found()


def plan_run(scenario: Scenario, scheme: str = DEFAULT_SCHEME, rounds: int | None = None) -> Plan:
    """The plan that a run with these arguments follows."""
    chosen = load_scheme(scheme)
    return plan_scheme(chosen, as_run_by(chosen, scenario, rounds))
