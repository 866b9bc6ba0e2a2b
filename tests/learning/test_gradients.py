"""Backward passes from given output gradients, against PyTorch's."""

import subprocess
import sys

import torch

from airdistill.learning.gradients import parameter_gradients


def test_parameter_gradients_equal_those_of_pytorch_and_are_zero_for_unused_parameters():
    torch.manual_seed(0)
    weight, unused = torch.randn(4, 3, requires_grad=True), torch.randn(2, requires_grad=True)
    outputs = torch.tanh(torch.randn(5, 4) @ weight)
    output_gradients = torch.randn(5, 3)
    expected = torch.autograd.grad(
        outputs, [weight, unused], output_gradients, materialize_grads=True, retain_graph=True
    )
    first = parameter_gradients(outputs, output_gradients, [weight, unused], keep=True)
    again = parameter_gradients(outputs, output_gradients, [weight, unused])
    for found, repeated, right in zip(first, again, expected, strict=True):
        assert torch.equal(found, right)
        assert torch.equal(repeated, right)
    assert torch.equal(first[1], torch.zeros(2))


def test_sympy_is_not_imported():
    program = (
        "import sys, torch; from airdistill.learning.gradients import parameter_gradients;"
        "w = torch.ones(2, requires_grad=True); parameter_gradients(2 * w, torch.ones(2), [w]);"
        "print('sympy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
