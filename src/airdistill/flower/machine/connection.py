"""Where Flower's own commands find a federation."""

from __future__ import annotations

from pathlib import Path

import tomli_w

CONNECTION = "cluster"


def write_connection(home: Path, address: str, authority_certificate: Path) -> None:
    """With FLWR_HOME set to `home`, `flwr run APP cluster` and its sisters speak to the SuperLink at that address."""
    home.mkdir(parents=True)
    connection = {"address": address, "root-certificates": str(authority_certificate.resolve())}
    content = {"superlink": {"default": CONNECTION, CONNECTION: connection}}
    (home / "config.toml").write_text(tomli_w.dumps(content))
