"""The timing cache's file. TensorRT for RTX has the class, though it makes no use of it, and says so."""

import os

import pytest

from calibrators.errors import BuildError
from calibrators.tensorrt.messages import BuildLog, collected, shared_logger
from trtint8.builder.timing_cache import attach_timing_cache, save_timing_cache

# The timing cache's file. TensorRT for RTX has the class, though it makes no use of it, and says so.
no_ops = pytest.mark.filterwarnings("ignore:Use Deprecated in TensorRT-RTX:DeprecationWarning")


@pytest.fixture
def config(rtx):
    builder = rtx.module.Builder(shared_logger(rtx.module))
    made = builder.create_builder_config()
    yield made
    del made, builder


@no_ops
def test_a_timing_cache_is_made_and_extended(config, tmp_path):
    path = tmp_path / "timing.cache"
    attach_timing_cache(config, path, BuildLog())
    assert not path.exists()
    save_timing_cache(config, path)
    first = path.read_bytes()
    assert first
    save_timing_cache(config, path)
    assert path.read_bytes() == first


@no_ops
def test_a_file_that_tensorrt_complains_of_is_refused_and_left_alone(rtx, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_bytes(b"my notes " * 50)
    builder = rtx.module.Builder(shared_logger(rtx.module))
    config = builder.create_builder_config()
    with (
        collected(rtx.module) as log,
        pytest.raises(BuildError, match=r"notes\.txt' is not a timing cache of this TensorRT and GPU"),
    ):
        attach_timing_cache(config, path, log)
    assert path.read_bytes() == b"my notes " * 50


def test_a_timing_cache_that_is_a_folder(config, tmp_path):
    with pytest.raises(BuildError, match="cannot be read: Is a directory"):
        attach_timing_cache(config, tmp_path, BuildLog())


def test_a_timing_cache_that_cannot_be_locked(config, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(BuildError, match=r"t\.cache' cannot be locked with '.*t\.cache\.lock': "):
        attach_timing_cache(config, tmp_path / "file" / "t.cache", BuildLog())


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_a_timing_cache_that_is_no_file_is_refused_and_not_waited_for(config, tmp_path, make):
    make(tmp_path / "t.cache")
    with pytest.raises(BuildError, match=r"the timing cache '.*t\.cache' cannot be read"):
        attach_timing_cache(config, tmp_path / "t.cache", BuildLog())


def test_a_link_in_the_place_of_the_lock_is_not_followed(config, tmp_path):
    (tmp_path / "other").write_text("kept")
    (tmp_path / "t.cache.lock").symlink_to("other")
    with pytest.raises(BuildError, match=r"t\.cache\.lock': it is a symbolic link"):
        attach_timing_cache(config, tmp_path / "t.cache", BuildLog())
    assert (tmp_path / "other").read_text() == "kept"
