import pytest

import trtint8
from trtint8.data import DEMO_MODEL, load_digits_split

pytest.importorskip("sklearn", reason="scikit-learn is not installed (pip install 'trtint8[demo]')")

SPLIT = load_digits_split()


def measured(table, data=None, **options):
    data = SPLIT.heldout_images if data is None else data
    options.setdefault("labels", SPLIT.heldout_labels)
    options.setdefault("progress", False)
    return trtint8.measure_sensitivity(DEMO_MODEL, table, data, **options)
