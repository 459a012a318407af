"""Options of a build."""

import numpy as np
import pytest

from calibrators.errors import UnsupportedError
from trtint8.builder.options import BuildOptions


@pytest.mark.parametrize("option", ["profiling_verbosity", "precision_constraints", "hardware_compatibility"])
def test_misspelt_options_of_the_build_are_refused(option):
    with pytest.raises(UnsupportedError, match=f"^{option} is 'no'; use one of "):
        BuildOptions(**{option: "no"})


def test_layers_that_may_not_run_on_the_gpu_need_a_dla():
    with pytest.raises(UnsupportedError, match=r"^gpu_fallback=False needs a DLA"):
        BuildOptions(gpu_fallback=False)
    assert not BuildOptions(gpu_fallback=False, dla_core=0).gpu_fallback


def test_a_single_name_is_not_its_letters():
    options = BuildOptions(plugins="own.so", tactic_sources="cudnn", io_formats={"images": "LINEAR"})
    assert options.plugins == ("own.so",)
    assert options.tactic_sources == ("cudnn",)
    assert options.io_formats == {"images": ("LINEAR",)}


@pytest.mark.parametrize("option", ["memory_pools", "shape_values", "io_formats", "io_types"])
def test_what_is_no_dict_is_refused(option):
    with pytest.raises(UnsupportedError, match=f"^{option} is 'bad'; give a dict from "):
        BuildOptions(**{option: "bad"})


@pytest.mark.parametrize("device", ["x", "0", -1, True, 1.0, None])
def test_a_device_is_the_index_of_a_gpu(device):
    with pytest.raises(UnsupportedError) as caught:
        BuildOptions(device=device)
    assert str(caught.value) == f"device is {device!r}; give the index of a GPU, such as 0"
    assert BuildOptions(device=np.int64(3)).device == 3
