"""Feature means of a user's own network: it is data of the run, and what it is trusted for is certified."""

import json
import os

import numpy as np
import pytest
import torch
from feature_worlds import FAST, skewed
from in_process import exit_code
from torch import nn

import airdistill as ad
from airdistill.runs.folder import RunError
from airdistill.runs.options import RunOptions

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
RARELY = RunOptions(threads=1, eval_every=100, dtype="float64", checkpoint_every=100)


def write_network(path, seed):
    torch.manual_seed(seed)
    torch.jit.script(nn.Sequential(nn.Linear(8, 12), nn.Tanh()).eval()).save(str(path))
    return path


def own(folder, *changes):
    network = f"public.embedding={folder / 'net.pt'}"
    return skewed(folder, network, "public.features=6", "learning.rounds=2", *changes)


def stop(*_):
    raise KeyboardInterrupt


def test_a_run_whose_network_has_changed_is_neither_resumed_nor_audited(tmp_path):
    """It would send other vectors with the same noise in the charged round that it repeats: their difference has none,
    and no further charge."""
    write_network(tmp_path / "net.pt", seed=0)
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        ad.run(own(tmp_path), "feature_means", out=folder, options=RARELY, on_round=stop)
    before = (tmp_path / "net.pt").read_bytes()
    write_network(tmp_path / "net.pt", seed=1)
    with pytest.raises(RunError, match="cannot be resumed: its dataset, trace or embedding has changed"):
        ad.resume(folder)
    assert exit_code("audit", folder) == 2
    (tmp_path / "net.pt").write_bytes(before)
    assert ad.resume(folder).summary["rounds"] == 2


def test_weights_and_what_code_makes_count_too(tmp_path, monkeypatch):
    (tmp_path / "made_here.py").write_text("import torch\ndef net():\n    return torch.nn.Linear(8, 12)\n")
    monkeypatch.syspath_prepend(tmp_path)
    from safetensors.torch import save_file

    for name in (f"made_here:net@{tmp_path / 'w.safetensors'}", "made_here:net"):
        save_file({"weight": torch.ones(12, 8).triu(), "bias": torch.zeros(12)}, tmp_path / "w.safetensors")
        folder = tmp_path / f"run-{'@' in name}"
        scenario = skewed(tmp_path, f"public.embedding={name}", "public.features=4", "learning.rounds=2")
        with pytest.raises(KeyboardInterrupt):
            ad.run(scenario, "feature_means", out=folder, options=RARELY, on_round=stop)
        assert exit_code("audit", folder, "--parts", "recorded") == 0
        save_file({"weight": torch.eye(12, 8), "bias": torch.zeros(12)}, tmp_path / "w.safetensors")
        if "@" not in name:
            import made_here

            monkeypatch.setattr(made_here, "net", lambda: nn.Linear(8, 13))
        with pytest.raises(RunError, match="embedding has changed"):
            ad.resume(folder)


def noise_key(folder):
    return json.loads((folder / "ledger.jsonl").read_text().splitlines()[0])["terms"]["noise_key"]


def test_another_network_at_the_same_place_has_other_noise_and_the_same_elsewhere_has_the_same(tmp_path):
    write_network(tmp_path / "net.pt", seed=0)
    ad.run(own(tmp_path), "feature_means", out=tmp_path / "first", options=FAST)
    elsewhere = tmp_path / "other.pt"
    elsewhere.write_bytes((tmp_path / "net.pt").read_bytes())
    ad.run(own(tmp_path, f"public.embedding={elsewhere}"), "feature_means", out=tmp_path / "moved", options=FAST)
    write_network(tmp_path / "net.pt", seed=1)
    ad.run(own(tmp_path), "feature_means", out=tmp_path / "second", options=FAST)
    assert noise_key(tmp_path / "first") == noise_key(tmp_path / "moved") != noise_key(tmp_path / "second")


def test_a_certificate_never_holds_plainly_with_a_network_of_the_users_own(tmp_path):
    """Its features could be of the whole batch, or made from private samples: both proofs need that they are not."""
    write_network(tmp_path / "net.pt", seed=0)
    trusted = ("privacy.trust=own_noise", "privacy.noise=secure", "privacy.epsilon=90")
    verdicts = {}
    for name, changes in (("own", ()), ("raw", ("public.embedding=raw",))):
        ad.run(own(tmp_path, *trusted, *changes), "feature_means", out=tmp_path / name, options=FAST)
        verdicts[name] = ad.certify(tmp_path / name).verdict_in_words
    assert verdicts == {"own": "holds under assumptions (user's own code)", "raw": "holds"}
    text = json.dumps(ad.certify(tmp_path / "own").to_dict())
    assert "gives a sample features of that sample alone, and no private sample has influenced it" in text


def test_a_network_is_found_from_any_working_directory(tmp_path, monkeypatch):
    write_network(tmp_path / "net.pt", seed=0)
    monkeypatch.chdir(tmp_path)
    scenario = own(tmp_path, "public.embedding=net.pt")
    with pytest.raises(KeyboardInterrupt):
        ad.run(scenario, "feature_means", out=tmp_path / "run", options=RARELY, on_round=stop)
    (tmp_path / "elsewhere").mkdir()
    os.chdir(tmp_path / "elsewhere")
    write_network("net.pt", seed=1)
    resumed = ad.resume(tmp_path / "run")
    whole = ad.run(own(tmp_path), "feature_means", out=tmp_path / "whole", options=RARELY)
    for one, other in zip(resumed.rounds, whole.rounds, strict=True):
        assert np.array_equal(one["measured_noise_var"], other["measured_noise_var"])
