"""A user's own network as an embedding: what is loaded, and what is refused in one line with a way out."""

import sys

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from airdistill.errors import InputError
from airdistill.learning.embeddings import fit_embedding

SAMPLES = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))

NETWORKS = """
import torch
from torch import nn

class Of(nn.Module):
    def __init__(self, function, buffer=False):
        super().__init__()
        self.function = function
        if buffer:
            self.register_buffer("mean", torch.zeros(8))

    def forward(self, x):
        return self.function(self, x)

class Stubborn(nn.Module):
    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def train(self, mode=True):
        return super().train(True)

    def forward(self, x):
        return x

def remember(self, x):
    self.mean += x.mean(dim=0)
    return x

def infinite():
    return Of(lambda self, x: 1 / (x * 0))

def of_the_batch():
    return Of(lambda self, x: x - x.mean(dim=0))

def random_rows():
    return Of(lambda self, x: x + torch.randn_like(x))

def random_scale():
    return Of(lambda self, x: x * torch.rand(1))

def remembering():
    return Of(remember, buffer=True)

def one_row():
    return Of(lambda self, x: x.sum(dim=0))

def wrong_shape():
    return nn.Linear(9, 3)

def linear(input_shape):
    return nn.Linear(input_shape[0], 6)

def number():
    return 3
"""


@pytest.fixture(autouse=True)
def networks(tmp_path, monkeypatch):
    (tmp_path / "own_nets.py").write_text(NETWORKS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("own_nets", None)


def fitted(name, width=4):
    return fit_embedding(name, SAMPLES, width, seed=0)


REFUSED = [
    ("own_nets:infinite", "must give finite numbers on the public samples; scale its inputs"),
    ("own_nets:of_the_batch", "depend on the other samples of its batch; use eval() statistics"),
    ("own_nets:random_rows", "gives one sample different features in two calls; remove what draws"),
    ("own_nets:random_scale", "gives one sample different features in two calls; remove what draws"),
    ("own_nets:remembering", "changes its own mean when it is called; store no statistics of inputs"),
    ("own_nets:Stubborn", "has a part in training mode; let eval() reach all parts"),
    ("own_nets:one_row", "must give a row of features for each of 32 samples, not shape (8,)"),
    ("own_nets:wrong_shape", "cannot take samples of shape (8,)"),
    ("own_nets:number", "must return an nn.Module, not a int"),
    ("own_nets:absent", "own_nets has no absent"),
    ("no_such_module:net", "cannot be imported"),
    ("absent.pt", "cannot be loaded"),
    ("text.pt", "cannot be loaded"),
    ("own_nets:linear@absent.safetensors", "its weights do not fit"),
]


@pytest.mark.parametrize(("name", "rule"), REFUSED)
def test_what_is_no_fixed_function_of_one_sample_is_refused(tmp_path, name, rule):
    (tmp_path / "text.pt").write_text("no network")
    with pytest.raises(InputError) as refused:
        fitted(name)
    assert str(refused.value).startswith(f'public.embedding = "{name}"')
    assert rule in str(refused.value)
    assert "\n" not in str(refused.value)


class Net(nn.Module):
    """A network with a dropout, which works in training mode only, and one with a dropout that always works."""

    def __init__(self, always: bool):
        super().__init__()
        self.linear, self.always = nn.Linear(8, 6), always

    def forward(self, x):
        return nn.functional.dropout(self.linear(x), 0.5, self.training or self.always)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize("always", [False, True])
def test_a_scripted_network_that_was_saved_in_training_mode(tmp_path, always):
    """Evaluation mode reaches a scripted dropout, but not one that is always on."""
    network = Net(always).train()
    torch.jit.script(network).save(str(tmp_path / "net.pt"))
    if always:
        with pytest.raises(InputError, match="different features in two calls"):
            fitted(str(tmp_path / "net.pt"))
        return
    embedding = fitted(str(tmp_path / "net.pt"))
    save_file({"weight": network.linear.weight, "bias": network.linear.bias}, tmp_path / "weights.safetensors")
    without = fitted("own_nets:linear@weights.safetensors")
    torch.testing.assert_close(embedding.features(SAMPLES), without.features(SAMPLES))


def test_weights_come_from_a_file(tmp_path):
    weights = {"weight": torch.eye(6, 8), "bias": torch.zeros(6)}
    save_file(weights, tmp_path / "weights.safetensors")
    embedding = fitted("own_nets:linear@weights.safetensors", 6)
    raw = fit_embedding("raw", SAMPLES[:, :6].contiguous(), 6, seed=0)
    one, other = embedding.features(SAMPLES).double(), raw.features(SAMPLES[:, :6].contiguous()).double()
    torch.testing.assert_close(one @ one.T, other @ other.T, rtol=0, atol=0.1)


def test_more_features_than_a_network_has_outputs_are_refused():
    with pytest.raises(InputError, match=r"has 6 outputs, fewer than public\.features = 7"):
        fitted("own_nets:linear", 7)
