from __future__ import annotations

import pickle

import numpy as np

from calibrators.data.batches import Batches
from calibrators.data.opening import open_batches
from tests.calibrators.data.sample_data import RAW, save_images
from tests.calibrators.specs import floats

NUMBERS = floats("x", "N", 1)
IMAGES = floats("x", "N", 3, 4, 4)


def test_a_sample_is_named_by_its_place_or_its_file(tmp_path):
    data = {"x": np.arange(20, dtype=np.float32)[:, None]}
    batches = open_batches(data, [NUMBERS], batch_size=4, limit=12, shuffle=True)
    values = np.concatenate([feed["x"][:, 0] for feed in batches]).astype(int).tolist()
    assert values != sorted(values)
    assert [batches.name_of(row) for row in range(12)] == [f"sample {value}" for value in values]
    assert open_batches([{"x": np.zeros((1, 1), np.float32)}], [NUMBERS]).name_of(7) == "sample 7"
    save_images(tmp_path / "images", ["a.png", "b.png", "c.png"])
    images = open_batches(tmp_path / "images", [IMAGES], batch_size=2, preprocessing=RAW)
    (tmp_path / "arrays").mkdir()
    for name, rows in (("a", 2), ("b", 1)):
        np.save(tmp_path / "arrays" / f"{name}.npy", np.zeros((rows, 1), np.float32))
    arrays = open_batches(tmp_path / "arrays", [NUMBERS])
    for found, names in (
        (images, ("images/a.png", "images/b.png", "images/c.png")),
        (arrays, ("arrays/a.npy",) * 2),
    ):
        assert [found.name_of(row) for row in range(len(names))] == [f"'{tmp_path / name}'" for name in names]
    assert arrays.name_of(2) == f"'{tmp_path / 'arrays' / 'b.npy'}'"


def test_a_sample_of_a_shard_is_called_what_it_is_called_in_the_data(tmp_path):
    """Wherever the shard begins: a worker of Ray has no more of the data."""
    save_images(tmp_path, [f"{number}.png" for number in range(7)])
    stream = [{"x": np.zeros((2, 1), np.float32)}] * 4
    rows = {"x": np.arange(20, dtype=np.float32)[:, None]}
    for batches in (
        open_batches(tmp_path, [IMAGES], batch_size=2, preprocessing=RAW),
        open_batches(stream, [NUMBERS]),
        open_batches(rows, [NUMBERS], batch_size=3, shuffle=True),
    ):
        seen = 0
        for shard in batches.cut(2):
            part = Batches.of_shard(pickle.loads(pickle.dumps(shard)), batches.source)
            numbers = range(shard.first, shard.first + shard.samples)
            assert [part.name_of(number) for number in numbers] == [*map(batches.name_of, numbers)]
            seen += shard.samples
        assert seen == sum(len(next(iter(feed.values()))) for feed in batches)
