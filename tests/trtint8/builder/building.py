"""Builds of small models."""

from tests.trtint8.onnx_models import specs
from trtint8.builder.build import Build


def build(model, rtx, **options):
    return Build(rtx, specs(model), **options).run(model.SerializeToString())


class Bar:
    """A progress bar that calls a function with the number of steps that were just completed.

    Args:
        advance: The function.
    """

    def __init__(self, advance):
        self._advance = advance

    def __call__(self, *_arguments, **_options):
        return self

    def __enter__(self):
        return self._advance

    def __exit__(self, *_error):
        pass
