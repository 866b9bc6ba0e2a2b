"""Tables and pages of real audits."""

import io
import re

import pytest
from audit_contexts import planned
from rich.console import Console

from airdistill.audit import AuditOptions, audit
from airdistill.report.audit import print_audit, write_audit_page
from airdistill.runs.options import RunOptions

LITTLE = AuditOptions(transcripts=2, candidates=4, trials=20, rounds=3, shadows=4)


def audited(folder, scheme, *changes):
    plan, chosen = planned(folder, scheme, *changes)
    return audit(plan, chosen, LITTLE, RunOptions(threads=1))


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    return audited(tmp_path_factory.mktemp("clean"), "ota_fd")


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    changes = ("learning.initial_lr=3", "privacy.sensitivity=paper", "privacy.trust=own_noise")
    return audited(tmp_path_factory.mktemp("broken"), "ota_fd", *changes)


def printed(found):
    console = Console(file=io.StringIO(), width=80)
    print_audit(found, console)
    return console.file.getvalue()


def test_the_terminal_shows_everything_in_eighty_columns(clean, broken):
    for found in (clean, broken):
        text = printed(found)
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= 80
    assert "Verdict: not violated" in printed(clean)
    text = re.sub(r"\s+", " ", printed(broken))
    assert "Verdict: violated" in text
    assert "The declared sensitivity (paper) is not a valid bound" in text
    assert "none for such pairs" in text
    assert f"{broken.empirical.variance.value:.3f}" in text


def test_the_page_shows_verdict_numbers_and_four_figures(clean, broken, tmp_path):
    for found, word in ((clean, "Verdict: not violated"), (broken, "Verdict: violated")):
        html = write_audit_page(found, tmp_path / "audit.html").read_text()
        assert html.count("<svg") == 4
        assert word in html
        assert not re.search(r"(?:src|href)=[\"']?https?:", html)
        for text in ("Lemma 1", "certified (", "counted noise", "allowed by ε", "estimate of a lower bound"):
            assert text in html


def test_attacks_that_were_not_made_are_not_shown(tmp_path):
    found = audited(tmp_path, "ota_fl")
    html = write_audit_page(found, tmp_path / "audit.html").read_text()
    assert html.count("<svg") == 3
    assert "Membership inference is left out" in html
    assert "TPR" not in printed(found)


def test_attacks_on_a_public_set_are_shown(tmp_path):
    changes = ["learning.local_epochs=2", "public.samples=12", "public.distill_epochs=1", "learning.receiver=projected"]
    found = audited(tmp_path, "airdistill_proxy", *changes)
    text = printed(found)
    assert max(map(len, text.splitlines())) <= 80
    for words in ("Membership inference from answers on the public set", "AUC, one device", "label distribution"):
        assert words in text
    flat = re.sub(r"\s+", " ", text)
    assert f"{found.labels.allowed_auc:.3f}" in flat
    html = write_audit_page(found, tmp_path / "audit.html").read_text()
    for words in ("Inference of the device's label distribution", "knows the others' answers", "has the sum only"):
        assert words.replace("'", "&#39;") in html
    assert f"{found.labels.attacks[1].distance_without_noise:.3f}" in html


def test_a_plan_without_privacy_can_be_shown(tmp_path):
    found = audited(tmp_path, "ota_fd", "privacy.epsilon=inf")
    assert "there is no guarantee to violate" in re.sub(r"\s+", " ", printed(found))
    assert write_audit_page(found, tmp_path / "audit.html").read_text().count("<svg") == 3
