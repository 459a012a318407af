"""The file of a runtime cache. What TensorRT for RTX has of it is looked at in its own module."""

from types import SimpleNamespace

import pytest

from calibrators.errors import EngineError, OutputError, UnsupportedError
from calibrators.tensorrt.flavor import Flavor
from tests.signatures import accepted_arguments, parameter_names
from trtint8.runtime.runtime_cache import RuntimeCache


class Cache:
    """Kernels are bytes; it takes those that begin with "ours"."""

    def __init__(self):
        self.data = b"ours, new"

    def deserialize(self, data):
        fits = data.startswith(b"ours")
        self.data = data if fits else self.data
        return fits

    def serialize(self):
        return memoryview(self.data)


@pytest.fixture
def cache():
    return Cache()


def test_contexts_take_the_configuration(rtx):
    function = rtx.module.ICudaEngine.create_execution_context
    assert any(low <= 1 <= high for low, high in accepted_arguments(function))
    assert ["runtime_config"] in parameter_names(function)


def attach(cache, path, flavor, accepted=True):
    config = SimpleNamespace(create_runtime_cache=lambda: cache, set_runtime_cache=lambda _cache: accepted)
    return RuntimeCache.attach(SimpleNamespace(create_runtime_config=lambda: config), path, flavor)


def test_what_was_compiled_is_there_the_next_time(rtx, cache, tmp_path):
    path = tmp_path / "kernels.cache"
    made = attach(cache, path, rtx)
    assert not path.exists()
    made.save()
    assert path.read_bytes() == b"ours, new"
    cache.data = b""
    attach(cache, path, rtx)
    assert cache.data == b"ours, new"


def test_a_file_is_written_only_where_there_is_something_new(rtx, cache, tmp_path):
    path = tmp_path / "kernels.cache"
    path.write_bytes(b"ours, old")
    made = attach(cache, path, rtx)
    before = path.stat().st_mtime_ns, path.stat().st_ino
    made.save()
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == before
    cache.data = b"ours, more"
    made.save()
    assert path.read_bytes() == b"ours, more"


def test_a_file_of_another_machine_is_made_anew(rtx, cache, tmp_path):
    path = tmp_path / "kernels.cache"
    path.write_bytes(b"theirs")
    with pytest.warns(UserWarning, match=r"kernels\.cache' is of another TensorRT, GPU or driver"):
        made = attach(cache, path, rtx)
    made.save()
    assert path.read_bytes() == b"ours, new"


def test_what_cannot_be(rtx, cache, tmp_path):
    with pytest.raises(EngineError, match="refuses the runtime cache"):
        attach(cache, tmp_path / "x", rtx, accepted=False)
    with pytest.raises(OutputError):
        attach(cache, tmp_path / "missing" / "x", rtx)


def test_only_tensorrt_for_rtx_has_it(cache, tmp_path):
    class Other(Flavor):
        module = SimpleNamespace()

    with pytest.raises(UnsupportedError, match=r"TensorRT 10\.1 has no runtime cache, since it compiles"):
        attach(cache, tmp_path / "x", Other("tensorrt", "10.1"))
