"""A loss as a list of parts: thunks that can be run, sent backward and freed one at a time.

Source of the idea: Gao et al. 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup" (GradCache), which cuts the
encoder's work that way; here the loss itself is cut too, so that no similarity matrix need exist whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from twinvec.errors import TrainingError

# Each call builds a graph of its own from the tensors that the part was made with, and returns a scalar.
# Parts share no intermediate result, so `part().backward()` may be called for one after the other.
Part = Callable[[], Tensor]


def total(parts: Sequence[Part]) -> Tensor:
    """The sum of all parts, a scalar: the loss itself, with every part's graph alive at once. No parts: TrainingError."""
    if not parts:
        raise TrainingError("loss: a list without parts has no sum; drop empty batches before this call")
    loss = parts[0]()
    for part in parts[1:]:
        loss = loss + part()
    return loss
