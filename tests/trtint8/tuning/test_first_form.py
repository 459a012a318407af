"""The form of the first batch."""

import numpy as np

from calibrators.data.opening import open_batches
from trtint8.data import DEMO_MODEL
from trtint8.models.model import load_model, prepare
from trtint8.tuning.first_form import first_form


def test_the_form_of_the_first_batch():
    model = prepare(load_model(DEMO_MODEL))
    data = {"images": np.zeros((5, 1, 8, 8), np.float32), "labels": np.arange(5)}
    form = first_form(model, open_batches(data, model.inputs, batch_size=3))
    assert form.outputs["logits"].shape == (3, 10) and form.rows == 3 and form.has_class_indices
