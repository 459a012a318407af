"""Options of a build."""

import pytest

from calibrators.errors import UnsupportedError
from trtint8.builder.options import BuildOptions


@pytest.mark.parametrize("option", ["profiling_verbosity", "precision_constraints", "hardware_compatibility"])
def test_misspelt_options_of_the_build_are_refused(option):
    with pytest.raises(UnsupportedError, match=f"^{option} is 'no'; use one of "):
        BuildOptions(**{option: "no"})
