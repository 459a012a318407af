"""The compiled part; everything else about the package stands in pyproject.toml."""

import sys

from setuptools import Extension, setup

# The code calls nothing of the C library, and some toolchains leave out libraries that are not called. Then
# auditwheel cannot say which C library the wheel is for.
LINK_TO_LIBC = ["-Wl,--no-as-needed"] if sys.platform == "linux" else []

setup(
    ext_modules=[
        Extension(
            "calibrators.histograms._counting",
            ["calibrators/histograms/_counting.c"],
            extra_compile_args=["-O3"],
            extra_link_args=LINK_TO_LIBC,
            py_limited_api=True,
            optional=True,  # without a C compiler the package is installed all the same, and NumPy counts
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},  # one wheel for all versions of Python
)
