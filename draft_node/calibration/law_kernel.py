"""The features of draft laws, read from their logits in one go: on a CPU, where numba is."""

import numpy as np

from draft_node.compiled import compiled, exp, largest

_LEAST = np.float32(-1e4)  # a token that is impossible (minus infinity) adds nothing


@compiled
def law_features(logits: np.ndarray, out: np.ndarray) -> None:
    """logits [N, V] -> log of the largest probability, and entropy in nats: [N, 2], float32."""
    for row in range(len(logits)):
        most = largest(logits[row])
        total = weighted = np.float32(0)
        for token in range(logits.shape[1]):
            gap = max(logits[row, token] - most, _LEAST)
            weight = exp(gap)
            total += weight
            weighted += weight * gap
        log_total = np.log(total)
        out[row, 0] = -log_total
        out[row, 1] = log_total - weighted / total
