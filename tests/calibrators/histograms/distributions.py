"""Values as networks have them, and their histograms."""

import numpy as np

from tests.calibrators.histograms.kernels import whole

_COUNT = 200_000


def _softmax_with_peaks(random):
    logits = random.normal(0, 1, (_COUNT // 10, 10))
    logits[np.arange(len(logits)), random.integers(0, 10, len(logits))] += 6
    exponentials = np.exp(logits)
    return exponentials / exponentials.sum(axis=1, keepdims=True)


#: Name to a function of a random generator that gives values.
DISTRIBUTIONS = {
    "normal": lambda random: random.normal(size=_COUNT),
    "uniform in [100, 255]": lambda random: random.uniform(100, 255, _COUNT),
    "integers in [100, 255]": lambda random: random.integers(100, 256, _COUNT),
    "bytes": lambda random: random.integers(0, 256, _COUNT),
    "log-mel features": lambda random: random.normal(-8, 2, _COUNT),
    "gates near 1": lambda random: 1 / (1 + np.exp(-random.normal(3, 1, _COUNT))),
    "softmax with peaks": _softmax_with_peaks,
}


def histogram_of(name):
    return whole(DISTRIBUTIONS[name](np.random.default_rng(0)).astype(np.float32))
