from __future__ import annotations

from airdistill.scenario.loading import changed
from airdistill.scenario.model import Scenario
from airdistill.schemes.proxy_fd import ProxyFd

_SERVER_SELECTOR = 1.0  # a label that most of those who answered give


class SelectiveFd(ProxyFd):
    """The same with two selectors (Selective-FD, the paper's reference S-FD): a device answers only samples that look
    like its own, and the server leaves out rows that no label stands out of."""

    name = "selective_fd"
    inherits = ("proxy_fd",)

    def adapt(self, scenario: Scenario) -> Scenario:
        adapted = super().adapt(scenario)
        assert adapted.public is not None
        kept = adapted.public.server_selector
        selectors = {"client_selector": "density", "server_selector": _SERVER_SELECTOR if kept is None else kept}
        return changed(adapted, {"public": selectors})
