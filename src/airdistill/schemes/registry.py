"""Schemes by name. A built-in scheme is one class and one line here."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import get_args

from airdistill import DEFAULT_SCHEME
from airdistill.errors import InputError, described, did_you_mean
from airdistill.planning.payloads import ClassMeans, Payload, check_payload_class
from airdistill.planning.plan import Plan
from airdistill.plugins import load_object
from airdistill.scenario.model import NAME_PATTERN, Scenario
from airdistill.schemes.base import Look, Releases, Scheme
from airdistill.schemes.distillation import (
    AirDistill,
    FdErrorFree,
    LocalOnly,
    OrthogonalFd,
    OtaFd,
    OtaFdAntennas,
    OtaFdFixed,
)
from airdistill.schemes.federated import (
    Centralised,
    FedAvg,
    FedDf,
    FedOpt,
    FedSgd,
    OtaFedAvg,
    OtaFl,
    OtaFlFixed,
    OtaFlSampled,
    OtaHead,
)
from airdistill.schemes.planning import as_run_by, plan_scheme
from airdistill.schemes.public_set import (
    AirDistillFeatures,
    AirDistillProxy,
    FeatureMeansScheme,
    LocalPublic,
    OtaProxyFd,
    Pate,
    ProxyFd,
    SelectiveFd,
)

SCHEMES: dict[str, type[Scheme]] = {
    scheme.name: scheme
    for scheme in (
        AirDistill,
        OtaFd,
        OtaFdFixed,
        OtaFdAntennas,
        OrthogonalFd,
        AirDistillFeatures,
        FeatureMeansScheme,
        AirDistillProxy,
        OtaProxyFd,
        Pate,
        FdErrorFree,
        ProxyFd,
        SelectiveFd,
        LocalOnly,
        LocalPublic,
        OtaFl,
        OtaFlFixed,
        OtaFlSampled,
        OtaFedAvg,
        OtaHead,
        FedSgd,
        FedAvg,
        FedOpt,
        FedDf,
        Centralised,
    )
}


def load_scheme(reference: str) -> Scheme:
    """Load a scheme by name, or a user's own by `package.module:Class`."""
    if reference in SCHEMES:
        return SCHEMES[reference]()
    if ":" not in reference:
        rule = "must be a name that `airdistill schemes` lists, or your own as package.module:Class"
        raise InputError("--scheme", reference, f"{rule}{did_you_mean(reference, SCHEMES)}")
    found = load_object(reference, "--scheme")
    if not (isinstance(found, type) and issubclass(found, Scheme)):
        raise InputError("--scheme", reference, "must be a class derived from airdistill.schemes.Scheme")
    if inspect.isabstract(found) or not re.fullmatch(NAME_PATTERN, str(getattr(found, "name", ""))):
        raise InputError("--scheme", reference, "must have a `name` fit for a folder, and a method `play`")
    if not found.__module__.startswith("airdistill."):
        for rule in _broken_rules(found):
            raise InputError("--scheme", reference, rule)
    try:
        return found()
    except Exception as error:  # a user's class can raise any exception
        raise InputError("--scheme", reference, f"cannot be made without arguments: {described(error)}") from error


def _broken_rules(scheme: type[Scheme]) -> Iterator[str]:
    """What is wrong with the attributes of a user's own scheme. All other code takes them for what they claim."""
    payload = scheme.payload
    if scheme.name in SCHEMES:
        yield f'its `name` is "{scheme.name}", a built-in scheme: give it a name of its own'
    if scheme.releases not in get_args(Releases):
        yield f"its `releases` is {scheme.releases!r}: must be one of {', '.join(get_args(Releases))}"
    if not (isinstance(payload, type) and issubclass(payload, Payload)):
        yield "its `payload` must be a class derived from airdistill.planning.payloads.Payload"
        return
    check_payload_class(payload)
    if scheme.tdma and payload is not ClassMeans:
        yield f"with `tdma` devices send class means: it cannot send {payload.words}"
    if not isinstance(scheme.inherits, tuple):
        yield f'its `inherits` is {scheme.inherits!r}: must be a tuple of names, such as ("ota_fd",)'
    if not isinstance(scheme.look, Look | None):
        yield "its `look` must be an airdistill.schemes.base.Look(colour, line, mark)"


def plan_run(scenario: Scenario, scheme: str = DEFAULT_SCHEME, rounds: int | None = None) -> Plan:
    """The plan that a run with these arguments follows."""
    chosen = load_scheme(scheme)
    return plan_scheme(chosen, as_run_by(chosen, scenario, rounds))
