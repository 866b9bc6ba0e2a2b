"""Scenarios: a fleet, its data, a link budget, a privacy target and the learning constants."""

from airdistill.scenario.loading import load, preset_names, preset_text
from airdistill.scenario.model import Scenario
from airdistill.scenario.per_device import PerDevice

__all__ = ["PerDevice", "Scenario", "load", "preset_names", "preset_text"]
