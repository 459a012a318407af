import pytest

from calibrators.errors import CalibrationDataError
from trtint8.engine.profiles import ShapeRange
from trtint8.runtime.binding_shapes import choose_profile

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
    with pytest.raises(
        CalibrationDataError,
        match="the engine takes 'x' 1x4 to 4x4 or 'x' 1x4 to 64x4, and the data has 'x' 65x4;",
    ):
        choose_profile({"x": (65, 4)}, [SMALL, LARGE], active=0)


def test_another_rank():
    with pytest.raises(CalibrationDataError, match="the data has 'x' 4"):
        choose_profile({"x": (4,)}, [SMALL], active=0)
