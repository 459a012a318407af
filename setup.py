"""The compiled part; everything else about the package stands in pyproject.toml."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "calibrators.histograms._counting",
            ["calibrators/histograms/_counting.c"],
            extra_compile_args=["-O3"],
            py_limited_api=True,
            optional=True,  # without a C compiler the package is installed all the same, and NumPy counts
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},  # one wheel for all versions of Python
)
