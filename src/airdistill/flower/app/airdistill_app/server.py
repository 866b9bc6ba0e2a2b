"""The ServerApp of the installed airdistill."""

from airdistill.flower.server_app import app

__all__ = ["app"]
