"""The server of the airdistill that is installed where this runs."""

from airdistill.flower.server_app import app

__all__ = ["app"]
