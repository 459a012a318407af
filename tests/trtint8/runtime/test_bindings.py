"""What an engine says of its inputs and outputs, in the words of TensorRT for RTX's own enumerations."""

from pathlib import Path

import pytest

from calibrators.errors import CalibrationDataError, UnsupportedError
from trtint8.engine.file import TensorSpec
from trtint8.engine.profiles import ShapeRange
from trtint8.runtime.bindings import Bindings, LoadingOptions, choose_profile, read_bindings


class Engine:
    """Answers as ``ICudaEngine`` does; a tensor is (name, mode, type, location, format, shape)."""

    num_optimization_profiles = 2

    def __init__(self, trt, *tensors):
        self.trt, self.tensors, self.num_io_tensors = trt, {one[0]: one for one in tensors}, len(tensors)

    def get_tensor_name(self, index):
        return list(self.tensors)[index]

    def get_tensor_mode(self, name):
        return getattr(self.trt.TensorIOMode, self.tensors[name][1])

    def get_tensor_dtype(self, name):
        return getattr(self.trt.DataType, self.tensors[name][2])

    def get_tensor_location(self, name):
        return getattr(self.trt.TensorLocation, self.tensors[name][3])

    def get_tensor_format(self, name):
        return getattr(self.trt.TensorFormat, self.tensors[name][4])

    def get_tensor_format_desc(self, name):
        return f"format {self.tensors[name][4]}"

    def get_tensor_shape(self, name):
        return self.trt.Dims(self.tensors[name][5])

    def get_tensor_profile_shape(self, name, index):
        shape = self.tensors[name][5]
        return [self.trt.Dims([dim if dim >= 0 else size + index for dim in shape]) for size in (1, 4, 8)]


IMAGES = ("images", "INPUT", "FLOAT", "DEVICE", "LINEAR", (-1, 3))
SIZE = ("size", "INPUT", "INT64", "HOST", "LINEAR", (4,))
LOGITS = ("logits", "OUTPUT", "BF16", "DEVICE", "LINEAR", (-1, 10))


def test_inputs_outputs_and_profiles(rtx):
    found = read_bindings(rtx.module, Engine(rtx.module, IMAGES, SIZE, LOGITS))
    profiles = tuple({"images": ShapeRange((1 + i, 3), (4 + i, 3), (8 + i, 3))} for i in range(2))
    assert found == Bindings(
        (TensorSpec("images", "float32", (None, 3)), TensorSpec("size", "int64", (4,))),
        (TensorSpec("logits", "bfloat16", (None, 10)),),
        frozenset({"size"}),
        profiles,
    )


def test_static_engines_have_no_profiles(rtx):
    static = ("images", "INPUT", "FP8", "DEVICE", "LINEAR", (2, 3))
    found = read_bindings(rtx.module, Engine(rtx.module, static))
    assert (found.inputs[0].dtype, found.profiles) == ("float8_e4m3fn", ())


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (("x", "INPUT", "INT4", "DEVICE", "LINEAR", (2,)), "tensor 'x' is INT4 in the engine, which NumPy"),
        (("x", "INPUT", "INT8", "DEVICE", "CHW32", (2,)), "tensor 'x' of the engine has the format format"),
        (("y", "OUTPUT", "INT64", "HOST", "LINEAR", (2,)), "output 'y' of the engine is written on the host"),
    ],
)
def test_what_cannot_be_fed(rtx, tensor, message):
    with pytest.raises(UnsupportedError, match=message):
        read_bindings(rtx.module, Engine(rtx.module, tensor))


SMALL = {"x": ShapeRange((1, 4), (1, 4), (4, 4))}
LARGE = {"x": ShapeRange((1, 4), (32, 4), (64, 4))}
ODD = {"x": ShapeRange((1, 3), (2, 3), (64, 3))}


@pytest.mark.parametrize(("rows", "index"), [(1, 0), (4, 0), (5, 1), (64, 1)])
def test_the_nearest_that_fits(rows, index):
    assert choose_profile({"x": (rows, 4)}, [SMALL, LARGE], active=0) == index
    assert choose_profile({"x": (rows, 4)}, [SMALL, LARGE], active=1) == index


def test_the_active_one_stays_where_it_is_as_good():
    assert choose_profile({"x": (8, 4)}, [LARGE, LARGE], active=1) == 1
    assert choose_profile({"x": (8, 4)}, [LARGE, LARGE], active=0) == 0


def test_static_inputs_do_not_matter():
    assert choose_profile({"x": (2, 3), "mask": (7,)}, [SMALL, ODD], active=0) == 1


def test_none_fits():
    with pytest.raises(CalibrationDataError, match=r"'x'.*1x4.*to 4x4"):
        choose_profile({"x": (65, 4)}, [SMALL, LARGE], active=0)


def test_another_rank():
    with pytest.raises(CalibrationDataError, match="the data has 'x' 4"):
        choose_profile({"x": (4,)}, [SMALL], active=0)


@pytest.mark.parametrize(
    ("given", "plugins"),
    [("own.so", ("own.so",)), (Path("own.so"), (Path("own.so"),)), (["a.so", "b.so"], ("a.so", "b.so"))],
)
def test_a_single_library_is_one(given, plugins):
    assert LoadingOptions(plugins=given).plugins == plugins


def test_what_is_no_path():
    with pytest.raises(UnsupportedError, match="5 is given where names are expected; give a string"):
        LoadingOptions(plugins=5)
