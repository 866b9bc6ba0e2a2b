"""Backward passes from given slopes against PyTorch's own."""

import subprocess
import sys

import torch

from airdistill.learning.gradients import slopes_from


def test_the_parameters_slopes_are_pytorchs_own_and_zero_where_nothing_depends_on_them():
    torch.manual_seed(0)
    weight, unused = torch.randn(4, 3, requires_grad=True), torch.randn(2, requires_grad=True)
    outputs = torch.tanh(torch.randn(5, 4) @ weight)
    of_outputs = torch.randn(5, 3)
    expected = torch.autograd.grad(outputs, [weight, unused], of_outputs, materialize_grads=True, retain_graph=True)
    first = slopes_from(outputs, of_outputs, [weight, unused], keep=True)
    again = slopes_from(outputs, of_outputs, [weight, unused])
    for found, repeated, right in zip(first, again, expected, strict=True):
        assert torch.equal(found, right)
        assert torch.equal(repeated, right)
    assert torch.equal(first[1], torch.zeros(2))


def test_no_symbolic_mathematics_are_loaded_for_it():
    program = (
        "import sys, torch; from airdistill.learning.gradients import slopes_from;"
        "w = torch.ones(2, requires_grad=True); slopes_from(2 * w, torch.ones(2), [w]); print('sympy' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"
