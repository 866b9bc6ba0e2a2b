"""Streamlit's command line, which asks nobody outside for this machine's address.

It would: where the page is open to a network, at the start; and anywhere, when a web page elsewhere knocks.
"""

from __future__ import annotations

from streamlit import net_util
from streamlit.web.cli import main


def unknown_outside() -> str | None:
    """The machine's address as the world sees it."""
    return None


def start() -> None:
    net_util.get_external_ip = unknown_outside
    main(prog_name="streamlit")


if __name__ == "__main__":
    start()
