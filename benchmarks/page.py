"""The response time of the page to a slider: from key press to updated number, in a real browser.

    python benchmarks/page.py [SCENARIO ...]

Starts `airdistill serve` and Chromium, moves the power slider of each scenario 20 times, and prints median and worst.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from airdistill.web.serving import served

MOVES = 20
# Records the time from a key press to the update of the energy that depends on it.
WATCH = """() => {
  window.waited = [];
  document.addEventListener('keydown', () => { window.pressed = performance.now() }, true);
  const metrics = [...document.querySelectorAll('[data-testid=stMetric]')];
  const shown = metrics.find(metric => metric.innerText.includes('Uplink energy'));
  new MutationObserver(() => window.waited.push(performance.now() - window.pressed))
    .observe(shown, {subtree: true, childList: true, characterData: true});
}"""


def main() -> None:
    scenarios = sys.argv[1:] or ["paper", "small-data"]
    with (
        tempfile.TemporaryDirectory() as name,
        served(Path(name), Path(name) / "said") as page,
        sync_playwright() as playwright,
    ):
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        for scenario in scenarios:
            tab = browser.new_page(viewport={"width": 1400, "height": 1000})
            waited = _response_times(tab, page.address, scenario)
            median, worst = statistics.median(waited), max(waited)
            print(f"{scenario}: {len(waited)} responses, median {median:.0f} ms, worst {worst:.0f} ms")
        browser.close()


def _response_times(page: Page, address: str, scenario: str) -> list[float]:
    """The response times of all slider moves, in milliseconds."""
    page.goto(address)
    page.get_by_role("combobox", name="Scenario").click()
    page.get_by_role("option", name=scenario, exact=True).click()
    page.get_by_text(f"{scenario}: ").first.wait_for()
    page.get_by_role("tab", name="Link").click()
    slider = page.get_by_role("slider", name="Transmit power limit").first
    slider.focus()
    page.wait_for_timeout(2000)
    page.evaluate(WATCH)
    for _ in range(MOVES):
        slider.press("ArrowRight")
        page.wait_for_timeout(1500)
    waited: list[float] = page.evaluate("window.waited")
    return waited


if __name__ == "__main__":
    main()
