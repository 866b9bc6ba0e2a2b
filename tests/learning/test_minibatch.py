import logging

import torch

from airdistill.learning import cuda_graphs
from airdistill.learning.cuda_graphs import MinibatchStep, recorded
from airdistill.learning.gradients import Target


def test_what_cannot_be_recorded_leaves_no_trace(monkeypatch, caplog):
    weights = [torch.ones(2), torch.zeros(1, requires_grad=True)]

    def work():
        for weight in weights:
            weight.detach().add_(1)

    def fails_at_last(trial):
        trial()
        raise RuntimeError("no such luck")

    monkeypatch.setattr(cuda_graphs, "_graph_of", fails_at_last)
    with caplog.at_level(logging.INFO):
        assert recorded(work, weights) is None
    assert "no such luck" in caplog.text
    assert [weight.tolist() for weight in weights] == [[1, 1], [0]]


def test_a_step_reads_what_was_last_given():
    weight = torch.zeros(1, dtype=torch.float64)
    target = Target(torch.ones(1, 1, dtype=torch.float64), torch.ones(1, dtype=torch.float64))

    def step(batch, target, lr):
        weight.add_(lr * batch.sum() * target.rows[0, 0] * target.known[0])
        return torch.full((2, 1), float(batch.sum()))

    made = MinibatchStep(step, (1, 2), target, [weight])
    for rows, known, lr in ((2.0, 1.0, 0.5), (3.0, 0.0, 0.5), (5.0, 1.0, 2.0)):
        made.begin(Target(torch.full((1, 1), rows), torch.full((1,), known)), lr)
        made.make(torch.tensor([[1, 2]]))
        made.make(torch.tensor([[3, 4]]))
        assert made.losses.tolist() == [[10], [10]]
    assert weight.item() == 10 * (2 * 0.5 + 5 * 2)
    assert target.rows.item() == 1
