"""The device of the airdistill that is installed where this runs."""

from airdistill.flower.client_app import app

__all__ = ["app"]
