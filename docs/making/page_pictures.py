"""Take screenshots of the web page for the manual: `python docs/making/page_pictures.py FOLDER` (plan, runs, compare).

The page is served by `airdistill serve`, with a run and a comparison of the preset `quick` that are made first.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from airdistill.web.serving import served

COMPARED = "airdistill,ota_fd,fd_error_free,local_only"
# Name, address, and the height of the visible part.
ADDRESSES = {
    "page-plan.png": ("?page=Plan", 1000),
    "page-runs.png": ("?page=Runs&run=quick-airdistill", 1180),
    "page-compare.png": ("?page=Compare", 1000),
}


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as runs:
        _airdistill("run", "quick", "--rounds", "30", "--eval-every", "2", "--out", f"{runs}/quick-airdistill")
        _airdistill("compare", "quick", "--schemes", COMPARED, "--rounds", "16", "--eval-every", "2", "--seeds", "3",
                    "--out", f"{runs}/quick-comparison")  # fmt: skip
        with served(Path(runs), Path(runs) / "said") as page, sync_playwright() as playwright:
            flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
            for name, (address, height) in ADDRESSES.items():
                _photograph(browser, f"{page.address}/{address}", height, folder / name)
            browser.close()


def _airdistill(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "airdistill", *arguments], check=True, stdout=subprocess.DEVNULL)


def _photograph(browser: Browser, address: str, height: int, path: Path) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": height})
    page.goto(address)
    page.get_by_test_id("stPlotlyChart").first.wait_for()
    page.wait_for_timeout(4000)
    page.screenshot(path=path)
    page.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
