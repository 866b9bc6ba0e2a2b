"""The links of a plan's devices on the terminal, as JSON, as a drawing, and on the page of a run."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from in_process import exit_code
from rich.console import Console
from small_worlds import small_scenario

import airdistill as ad
from airdistill.errors import InputError
from airdistill.planning.links import device_links
from airdistill.report.links import link_rows, link_summary, links_section, plot_map, print_links, text_map


def printed(plan, width=80):
    console = Console(file=io.StringIO(), width=width)
    print_links(plan, console)
    return console.file.getvalue()


@pytest.mark.parametrize("devices", [1, 20, 150])
def test_the_table_and_the_map_fit_eighty_columns(devices):
    text = printed(ad.plan(ad.load("quick", [f"fleet.devices={devices}"]), "ota_fd"))
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert "Directions are drawn for the map only" in text
    assert sum(line.strip().split()[:1] == [str(devices - 1)] for line in lines) >= 1


def test_rows_show_the_numbers_of_the_links():
    links = device_links(ad.plan("quick", "ota_fd"))
    columns, rows = link_rows(links)
    columns = [" ".join(column.split()) for column in columns]
    weakest = int(np.argmin(links.snr_db))
    assert len(rows) == 20
    assert rows[weakest][columns.index("SNR, dB")] == f"{links.snr_db[weakest]:.1f}".replace("-", "−")
    assert rows[weakest][columns.index("path loss, dB")] == f"{links.path_loss_db[weakest]:.1f}"


def test_every_device_is_on_the_map_where_it_is():
    plan = ad.plan(
        ad.load("quick", ["fleet.devices=3", "radio.distance=[100, 200, 400]", "radio.fading=none"]), "ota_fd"
    )
    links = device_links(plan)
    lines = text_map(links).splitlines()
    (server,) = [(row, line.index("S")) for row, line in enumerate(lines[:-1]) if "S" in line]
    assert server == (12, 37)
    for device in range(3):
        across, up = (links.distance_m[device] * turned(links.bearing_rad[device]) / 400 for turned in (np.cos, np.sin))
        row, column = round(12 - 12 * up), round(37 + 36 * across)
        assert str(device) in lines[row][max(column - 1, 0) : column + 2]


def test_devices_in_the_same_place_are_marked():
    same = ad.plan(ad.load("quick", ["fleet.devices=4", "radio.distance=300 m", "radio.fading=none"]), "ota_fd")
    links = device_links(same)
    links = replace(links, bearing_rad=np.array([0.0, 0.0, np.pi, np.pi]))
    *drawing, note = text_map(links).splitlines()
    assert "".join(drawing).count("+") == 2
    assert "+: more devices" in note


def test_large_fleets_are_counted_on_the_map():
    links = device_links(ad.plan(ad.load("quick", ["fleet.devices=150"]), "ota_fd"))
    *drawing, note = text_map(links).splitlines()
    letters = "".join(drawing)
    least = letters.count(".") + 2 * letters.count(":") + 4 * letters.count("o") + 10 * letters.count("O")
    most = letters.count(".") + 3 * letters.count(":") + 9 * letters.count("o") + 150 * letters.count("O")
    assert least <= 150 <= most
    assert "o 4 to 9" in note


def test_json_has_the_same_numbers(capsys):
    assert exit_code("plan", "quick", "--scheme", "ota_fd", "--devices", "--json") == 0
    found = json.loads(capsys.readouterr().out)["links"]
    links = device_links(ad.plan("quick", "ota_fd"))
    assert found["snr_db"] == pytest.approx(links.snr_db.tolist())
    assert found["noise_share"] == pytest.approx(links.noise_share.tolist())
    assert found["bearings_matter"] is False
    assert exit_code("plan", "quick", "--scheme", "ota_fd", "--json") == 0
    assert "links" not in json.loads(capsys.readouterr().out)


def test_the_map_is_drawn_or_refused(tmp_path):
    plan = ad.plan("quick", "ota_fd")
    plot_map(plan, tmp_path / "map.svg")
    text = (tmp_path / "map.svg").read_text()
    assert "SNR at full power, dB" in text
    assert "server" in text
    with pytest.raises(InputError, match="must end in"):
        plot_map(plan, tmp_path / "map.gif")
    given = ad.plan(ad.load("quick", ["fleet.devices=2", "radio.gains=[[1e-6,0],[0,1e-6]]"]), "ota_fd")
    with pytest.raises(InputError, match="gains are given or recorded"):
        plot_map(given, tmp_path / "map.png")
    assert "Map" not in printed(given)
    sum_of_devices = ad.plan(ad.load("quick", ["air.medium=secure_sum"]), "airdistill", rounds=2)
    assert "the devices have no links" in printed(sum_of_devices)
    assert links_section(sum_of_devices) == ()


def test_the_summary_names_the_weakest_device_and_the_one_that_limits():
    changes = ["fleet.devices=3", "radio.distance=[100, 200, 400]", "radio.fading=none", "privacy.epsilon=inf"]
    plan = ad.plan(ad.load("quick", [*changes, "privacy.trust=receiver_noise"]), "ota_fd")
    summary = link_summary(plan, device_links(plan))
    assert "Device 2 of 3 is the weakest" in summary
    assert "The channel of device 2 limits the scale λ in 100% of rows and rounds." in summary


def test_the_page_of_a_run_has_the_links(tmp_path):
    record = ad.run(small_scenario(tmp_path, "learning.rounds=1"), scheme="ota_fd", out=tmp_path / "run")
    page = (record.folder / "report.html").read_text() if (record.folder / "report.html").is_file() else ""
    if not page:
        from airdistill.report.run import write_run_page

        page = write_run_page(record).read_text()
    assert "Links" in page
    assert "Map of the devices around the server" in page
    assert "power used" in page


def test_the_plan_prints_receiver_noise_and_limits(capsys):
    changes = ["--set", "radio.noise_power=thermal", "--set", "radio.noise_figure_db=6"]
    band = ["--set", "radio.band=868", "--set", "radio.carrier=868.3 MHz"]
    assert exit_code("plan", "quick", "--scheme", "ota_fd", *changes, *band) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "-113.0 dBm in 312.5 kHz, a noise figure of 6.0 dB" in text
    assert "41 mW a device, 16.1 dBm EIRP, ERC Recommendation 70-03" in text
    assert "1 % of the time: at least 2.16 s for the run, a round every 36 ms" in text
