import pytest

from calibrators.errors import UnsupportedError
from calibrators.host import cuda_session
from calibrators.host.cuda_session import Cpu, device_kind, open_device


def test_names(monkeypatch):
    monkeypatch.setattr(cuda_session, "open_gpu", lambda index: index)
    assert [open_device(name) for name in ("cpu", "cuda", "cuda:0", "cuda:12")] == [Cpu(), 0, 0, 12]
    assert [device_kind(name) for name in ("cpu", "cuda", "cuda:1")] == ["cpu", "cuda", "cuda"]


@pytest.mark.parametrize("name", ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "cpu:0", "CUDA", "cuda:1 "])
def test_names_of_nothing(name):
    for function in (device_kind, open_device):
        with pytest.raises(UnsupportedError, match=f"the device is '{name}'; give cpu, cuda, or cuda:1"):
            function(name)
