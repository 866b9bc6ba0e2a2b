import logging

import torch

from airdistill.learning import cuda_graphs
from airdistill.learning.cuda_graphs import MinibatchStep, captured
from airdistill.learning.gradients import Target


def test_a_failed_capture_leaves_the_weights_unchanged(monkeypatch, caplog):
    weights = [torch.ones(2), torch.zeros(1, requires_grad=True)]

    def work():
        for weight in weights:
            weight.detach().add_(1)

    def fails_after_the_warm_up(trial):
        trial()
        raise RuntimeError("unsupported operation")

    monkeypatch.setattr(cuda_graphs, "_capture", fails_after_the_warm_up)
    with caplog.at_level(logging.INFO):
        assert captured(work, weights) is None
    assert "unsupported operation" in caplog.text
    assert [weight.tolist() for weight in weights] == [[1, 1], [0]]


def test_a_step_reads_the_latest_batch_target_and_learning_rate():
    weight = torch.zeros(1, dtype=torch.float64)
    target = Target(torch.ones(1, 1, dtype=torch.float64), torch.ones(1, dtype=torch.float64))

    def step(batch, target, lr):
        weight.add_(lr * batch.sum() * target.rows[0, 0] * target.known[0])
        return torch.full((2, 1), float(batch.sum()))

    minibatch_step = MinibatchStep(step, (1, 2), target, [weight])
    for rows, known, lr in ((2.0, 1.0, 0.5), (3.0, 0.0, 0.5), (5.0, 1.0, 2.0)):
        minibatch_step.begin(Target(torch.full((1, 1), rows), torch.full((1,), known)), lr)
        minibatch_step.run(torch.tensor([[1, 2]]))
        minibatch_step.run(torch.tensor([[3, 4]]))
        assert minibatch_step.losses.tolist() == [[10], [10]]
    assert weight.item() == 10 * (2 * 0.5 + 5 * 2)
    assert target.rows.item() == 1
