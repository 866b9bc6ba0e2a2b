"""The page in a real browser, served by the real command. Tests wait for states of the page, never for a time."""

import json
import os
import re
import shlex
import shutil
import signal
import tomllib

import pytest
from in_process import exit_code
from playwright.sync_api import expect, sync_playwright
from small_worlds import small_scenario

import airdistill as ad
from airdistill.runs.folder import is_locked
from airdistill.runs.options import RunOptions
from airdistill.scenario.loading import as_toml, load
from airdistill.web.serving import served

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed on this machine")
# A test machine has no GPU and no network, and runs as root.
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
TIMEOUT_MS = 180_000  # far longer than needed: a busy machine must not fail a test
FITS = """() => {
  const main = document.querySelector("[data-testid=stMain]");
  return main.scrollWidth <= main.clientWidth;
}"""
DESKTOP, PHONE = {"width": 1400, "height": 1000}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with two runs that ended, one with damaged records, and one that did not begin."""
    folder = tmp_path_factory.mktemp("runs")
    scenario = small_scenario(folder)
    for scheme in ("airdistill", "local_only"):
        ad.run(scenario, scheme, out=folder / scheme, options=RunOptions(eval_every=2))
    shutil.copytree(folder / "airdistill", folder / "damaged")
    lines = (folder / "damaged" / "rounds.jsonl").read_text().splitlines()
    (folder / "damaged" / "rounds.jsonl").write_text("\n".join([lines[0], lines[1][:40], *lines[2:], ""]))
    shutil.copytree(folder / "airdistill", folder / "half")
    for name in ("run.json", "rounds.jsonl", "summary.json"):
        (folder / "half" / name).unlink()
    return folder


@pytest.fixture(scope="module")
def server(runs, tmp_path_factory):
    """The address of `airdistill serve`."""
    log = tmp_path_factory.mktemp("log") / "server.log"
    with served(runs, log) as page:
        yield page.address
    assert "Traceback" not in log.read_text()


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser, server):
    """A page that must leave the console clean and send requests to its own server only."""
    page = browser.new_page(viewport=DESKTOP)
    page.set_default_timeout(TIMEOUT_MS)
    expect.set_options(timeout=TIMEOUT_MS)
    errors, hosts = [], set()
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: hosts.add(request.url.split("/")[2] if "//" in request.url else None))
    yield page
    page.close()
    assert errors == []
    assert hosts - {None} == {server.removeprefix("http://")}


def metric(page, label):
    return page.get_by_test_id("stMetric").filter(has_text=label).get_by_test_id("stMetricValue")


def expect_idle(page):
    """Wait until the server has drawn the page."""
    expect(page.locator("[data-testid=stApp][data-test-script-state=notRunning]")).to_be_visible()


def choose_scenario(page, name):
    page.get_by_role("combobox", name="Scenario").click()
    page.get_by_role("option", name=name, exact=True).click()
    expect(page.get_by_text(f"{name}: ").first).to_be_visible()


def test_a_slider_gives_the_rounds_that_the_command_line_gives(page, server, tmp_path, capsys):
    page.goto(server)
    choose_scenario(page, "device-level")
    before = ad.plan(load("device-level"), "ota_fd").num_rounds
    expect(metric(page, "Rounds T")).to_have_text(str(before))
    page.get_by_role("tab", name="Privacy").click()
    slider = page.get_by_role("slider", name="ε of a device")
    for _ in range(4):
        slider.press("ArrowLeft")
    expect(metric(page, "Rounds T")).not_to_have_text(str(before))
    # Four positions below 8. A file can be downloaded until the page is drawn again.
    expect(page.get_by_test_id("stCode").last).to_contain_text("privacy.epsilon=3.0")
    expect_idle(page)
    with page.expect_download() as download:
        page.get_by_role("button", name="Download scenario").click()
    path = tmp_path / "mine.toml"
    download.value.save_as(path)
    assert tomllib.loads(path.read_text())["privacy"]["epsilon"] < 8
    assert exit_code("plan", path, "--scheme", "ota_fd", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    expect(metric(page, "Rounds T")).to_have_text(str(printed["rounds"]["chosen"]))
    command = shlex.split(page.get_by_test_id("stCode").last.inner_text())
    assert command[:6] == ["airdistill", "plan", "device-level", "--scheme", "ota_fd", "--set"]
    assert load("device-level", command[6:]) == load(path)


def test_a_wrong_field_is_reported_and_can_be_corrected(page, server):
    page.goto(server)
    typed = page.get_by_role("textbox", name="Other fields")
    typed.fill("radio.peek_power=1 mW")
    typed.press("Control+Enter")
    expect(page.get_by_test_id("stAlert").filter(has_text="did you mean peak_power?")).to_be_visible()
    typed.fill("radio.peak_power=2 mW")
    typed.press("Control+Enter")
    expect(metric(page, "Rounds T")).to_be_visible()
    expect(page.get_by_text("did you mean")).to_have_count(0)


def test_typed_text_is_shown_unchanged(page, server):
    """The browser turns text into links, icons and arrows even if Markdown does not."""
    odd = "http://a.example www.b.example c@d.example :material/home: -- <- $y$ <b>"  # short enough not to be cut
    page.goto(server)
    typed = page.get_by_role("textbox", name="Other fields")
    typed.fill(f"data.partition={odd}")
    typed.press("Control+Enter")
    alert = page.get_by_test_id("stAlert").filter(has_text="data.partition")
    expect(alert).to_be_visible()
    expect(alert.get_by_role("link")).to_have_count(0)
    assert odd in alert.inner_text().replace("\N{WORD JOINER}", "")


def test_an_opened_scenario_is_run_watched_stopped_and_resumed(page, server, runs, tmp_path):
    (tmp_path / "opened.toml").write_text(as_toml(small_scenario(tmp_path, "name=opened")))
    page.goto(server)
    page.get_by_text("Open a scenario").click()
    page.get_by_test_id("stFileUploader").locator("input").set_input_files(tmp_path / "opened.toml")
    expect(page.get_by_text("opened: 3 devices with 20 samples")).to_be_visible()
    page.get_by_role("spinbutton", name="Rounds", exact=True).fill("100000")  # it must not end during the test
    page.get_by_role("spinbutton", name="Rounds between evaluations").fill("100")
    page.get_by_role("button", name="Start a run").click()
    page.get_by_role("button", name="Show the run").click()
    expect(metric(page, "State")).to_have_text("running")
    seen = rounds_seen(page, 3)
    assert seen == sorted(seen)
    expect(page.get_by_text("Received: RMS error")).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    expect(metric(page, "State")).to_have_text("stopped")
    folder = runs / "opened-ota_fd"
    assert not is_locked(folder)
    stopped_at = len(ad.RunRecord.read(folder).rounds)
    page.get_by_role("button", name="Resume").click()
    expect(metric(page, "State")).to_have_text("running")
    assert rounds_seen(page, 2)[-1] > stopped_at
    page.get_by_role("button", name="Stop").click()
    expect(metric(page, "State")).to_have_text("stopped")
    expect(page.get_by_text("with secret noise it would hold under assumptions").first).to_be_visible()
    records = ad.RunRecord.read(folder).rounds
    assert [record["round"] for record in records] == list(range(1, len(records) + 1))


def rounds_seen(page, count):
    """The next numbers of rounds that the page shows by itself."""
    value, texts = metric(page, "Round").first, []
    while len(texts) < count:
        expect(value).not_to_have_text(texts[-1] if texts else re.compile("^0 of "))
        texts.append(value.inner_text())
    return [int(text.split()[0]) for text in texts]


def test_a_damaged_run_is_reported_and_others_are_shown(page, server):
    page.goto(f"{server}/?page=Runs&run=damaged")
    damage = "rounds.jsonl: line 2: cannot be read; the file is damaged"
    expect(page.get_by_test_id("stAlert").filter(has_text=damage)).to_be_visible()
    page.get_by_role("combobox", name="Run").click()
    page.get_by_role("option", name="half").click()
    expect(page.get_by_text("half did not begin")).to_be_visible()
    page.get_by_role("combobox", name="Run").click()
    page.get_by_role("option", name="airdistill", exact=True).click()
    expect(metric(page, "State")).to_have_text("ended")
    page.get_by_text("Show the report").click()
    expect(page.frame_locator("iframe").get_by_role("heading", name="Results")).to_be_visible()


def select_runs(page):
    box = page.get_by_role("combobox", name="Runs")
    for name in ("airdistill", "local_only"):
        box.click()
        page.get_by_role("option", name=name, exact=True).click()
    box.press("Escape")


def test_selected_runs_are_compared(page, server):
    page.goto(f"{server}/?page=Compare")
    select_runs(page)
    expect(page.get_by_role("cell", name="local_only")).to_have_count(2)  # results and the link, and privacy
    expect(page.get_by_text("airdistill gains over")).to_be_visible()
    expect(page.get_by_role("heading", name="Accuracy against uplink time")).to_be_visible()


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("where", ["?page=Plan", "?page=Runs&run=airdistill", "?page=Compare"])
def test_no_page_is_wider_than_its_screen(page, server, size, where, tmp_path):
    """If PICTURES names a folder, screenshots are stored there."""
    page.set_viewport_size(size)
    page.goto(f"{server}/{where}")
    if "Compare" in where:
        select_runs(page)
    expect(page.get_by_test_id("stPlotlyChart").first).to_be_visible()
    expect_idle(page)
    page.wait_for_function(FITS)
    name = f"{where.split('=')[1].split('&')[0]}-{size['width']}.png".lower()
    page.screenshot(path=f"{os.environ.get('PICTURES', tmp_path)}/{name}")


def test_ctrl_c_ends_the_server(runs, tmp_path):
    with served(runs, tmp_path / "server.log") as page:
        page.process.send_signal(signal.SIGINT)
        assert page.process.wait(timeout=TIMEOUT_MS / 1000) in (0, 130)
