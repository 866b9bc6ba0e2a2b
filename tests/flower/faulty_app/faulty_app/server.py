"""AirDistill's ServerApp, unchanged."""

from airdistill.flower.server_app import app

__all__ = ["app"]
