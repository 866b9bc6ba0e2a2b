"""AirDistill's server as it is."""

from airdistill.flower.server_app import app

__all__ = ["app"]
