"""Schemes by name."""

from __future__ import annotations

import inspect
import re

from airdistill import DEFAULT_SCHEME
from airdistill.codesign.plan import Plan
from airdistill.errors import InputError
from airdistill.plugins import load_object
from airdistill.scenario.model import NAME_PATTERN, Scenario
from airdistill.schemes.airdistill import AirDistill
from airdistill.schemes.airdistill_proxy import AirDistillProxy
from airdistill.schemes.base import Scheme
from airdistill.schemes.fd_error_free import FdErrorFree
from airdistill.schemes.fedavg import FedAvg
from airdistill.schemes.fedsgd import FedSgd
from airdistill.schemes.local_only import LocalOnly
from airdistill.schemes.orthogonal_fd import OrthogonalFd
from airdistill.schemes.ota_fd import OtaFd
from airdistill.schemes.ota_fd_antennas import OtaFdAntennas
from airdistill.schemes.ota_fd_fixed import OtaFdFixed
from airdistill.schemes.ota_fl import OtaFl
from airdistill.schemes.ota_fl_fixed import OtaFlFixed
from airdistill.schemes.ota_fl_sampled import OtaFlSampled
from airdistill.schemes.ota_proxy_fd import OtaProxyFd
from airdistill.schemes.planning import as_run_by, plan_scheme
from airdistill.schemes.proxy_fd import ProxyFd
from airdistill.schemes.selective_fd import SelectiveFd

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
    """A scheme by name, or a user's own by `package.module:Scheme`."""
    if reference in SCHEMES:
        return SCHEMES[reference]()
    if ":" not in reference:
        rule = f"must be one of {', '.join(SCHEMES)}, or your own as package.module:Scheme"
        raise InputError("--scheme", reference, rule)
    found = load_object(reference, "--scheme")
    if not (isinstance(found, type) and issubclass(found, Scheme)):
        raise InputError("--scheme", reference, "must be a class derived from airdistill.schemes.Scheme")
    if inspect.isabstract(found) or not re.fullmatch(NAME_PATTERN, str(getattr(found, "name", ""))):
        raise InputError("--scheme", reference, "must have a `name` fit for a folder, and a method `play`")
    return found()


def plan_run(scenario: Scenario, scheme: str = DEFAULT_SCHEME, rounds: int | None = None) -> Plan:
    """The plan that a run of these arguments would follow."""
    chosen = load_scheme(scheme)
    return plan_scheme(chosen, as_run_by(chosen, scenario, rounds))
