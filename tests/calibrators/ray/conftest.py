"""What the tests of work over Ray share."""

import pytest


@pytest.fixture
def outstanding(monkeypatch):
    """How many answers of workers the driver has waited for, each time that it began to wait."""
    ray_module = pytest.importorskip("ray", reason="Ray is not installed (pip install 'trtint8[ray]')")
    counts, wait = [], ray_module.wait

    def counted(references, **options):
        counts.append(len(references))
        return wait(references, **options)

    monkeypatch.setattr(ray_module, "wait", counted)
    return counts
