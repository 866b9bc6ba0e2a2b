"""The page in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from airdistill.cli.app import app


@app.command("serve")
def serve_command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Whose runs are shown.")] = Path("runs"),
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Where the page is.")] = 8501,
    address: Annotated[
        str,
        typer.Option("--address", help="Another than localhost opens the page to a network, to be looked at only."),
    ] = "localhost",
    open_browser: Annotated[bool, typer.Option("--open", help="Open a browser, too.")] = False,
) -> None:
    """One page in the browser: plan under sliders, watch runs, compare them. Ctrl-C ends it; runs go on.

    Example: airdistill serve runs --port 8600
    """
    from airdistill.web.serving import serve

    serve(folder, address, port, open_browser)
