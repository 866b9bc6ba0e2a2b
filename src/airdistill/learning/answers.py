"""A model taught by a few answered public samples and all unanswered ones.

It is trained on public samples and on what was already released: post-processing, which costs no privacy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.sparse import csr_array, eye_array
from scipy.sparse.linalg import cg
from torch import nn

from airdistill.arrays import FloatArray, IntArray
from airdistill.learning.patches import neighbour_graph, patch_features
from airdistill.learning.samples import as_model_input
from airdistill.learning.student import Student

# Chosen on seeds from 100 on, docs/pate.md.
_NEIGHBOURS = 6
_WIDTH = 32  # features of a model
_REACH = 0.99  # α of label spreading
_PASSES = 3  # models, of which each after the first has learned labels spread in features of the one before
_LEAST = 1e-12
_TOLERANCE, _STEPS = 1e-6, 1000  # of conjugate gradients


@dataclass(frozen=True)
class AnsweredStudent:
    """The student of a trusted aggregator's answers.

    1. Answers spread over the nearest-neighbour graph of unsupervised features (`patches`), without labels.
    2. A model learns the spread class probabilities of all public samples, with random moves.
    3. Answers spread again, over the sum of that graph and the graph of the model's own features, and a new model
       learns them; this is done twice.
    """

    student: Student

    @cached_property
    def _features(self) -> FloatArray:
        return patch_features(as_model_input(self.student.samples), self.student.engine.device)

    @cached_property
    def _graph(self) -> csr_array:
        return neighbour_graph(self._features, self._neighbours)

    @property
    def _neighbours(self) -> int:
        return min(_NEIGHBOURS, len(self.student.samples) - 1)

    def taught(self, labels: IntArray) -> tuple[nn.Module, FloatArray]:
        """The model, and the class probabilities `[sample, class]` that it learned, from labels `[sample]`.

        A label below 0 means that the sample has no answer. At least one sample must have one.
        """
        answers = np.where(labels[:, None] >= 0, np.eye(self.student.num_classes)[labels], 0.0)
        probabilities = spread(answers, self._graph)
        model = self.student.taught(probabilities)
        for _ in range(_PASSES - 1):
            own = self.student.own_features(model, _WIDTH)
            if own is None:
                break
            both = csr_array((self._graph + neighbour_graph(own, self._neighbours)) / 2)
            probabilities = spread(answers, both)
            model = self.student.taught(probabilities)
        return model, probabilities


def spread(answers: FloatArray, graph: csr_array) -> FloatArray:
    """Class probabilities of all samples from one-hot answers `[sample, class]`, zero rows where there is none.

    f = (I − αS)⁻¹ y (Zhou et al., "Learning with Local and Global Consistency", 2004). Every class then gets the same
    total over the samples, which undoes that classes have different numbers of answers; samples that no answer reaches
    are uniform.
    """
    matrix = eye_array(len(answers), format="csr") - _REACH * graph
    columns = [cg(matrix, answers[:, label], rtol=_TOLERANCE, maxiter=_STEPS)[0] for label in range(answers.shape[1])]
    found = np.maximum(np.stack(columns, axis=1), _LEAST * answers.any(axis=0))
    shares = found / np.maximum(found.sum(axis=0), _LEAST)
    total = shares.sum(axis=1, keepdims=True)
    return np.asarray(np.where(total > 0, shares / np.where(total > 0, total, 1.0), 1.0 / answers.shape[1]))
