"""The ClientApp of the installed airdistill."""

from airdistill.flower.client_app import app

__all__ = ["app"]
