"""An engine as a Polygraphy runner.

To compare it with Polygraphy's own::

    from polygraphy.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
    from polygraphy.comparator import Comparator
    from trtint8.runtime.polygraphy_runner import TrtInt8Runner

    runners = [OnnxrtRunner(SessionFromOnnx("resnet50.onnx")), TrtInt8Runner("resnet50.engine")]
    results = Comparator.run(runners, data_loader=feed_dicts)
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from calibrators.checks import PATH_TYPES, FilePath
from calibrators.errors import UnsupportedError
from calibrators.imports import install_command
from trtint8.runtime.engine import Engine

try:
    from polygraphy.backend.base import BaseRunner
    from polygraphy.common import TensorMetadata
except ModuleNotFoundError as error:
    raise UnsupportedError(
        f"Polygraphy is not installed; run {install_command('polygraphy')} to use its runners"
    ) from error

#: The path of an engine, a loaded engine, or a function that returns one, as Polygraphy's lazy loaders do.
EngineSource = FilePath | Engine | Callable[[], Engine]


class TrtInt8Runner(BaseRunner):  # type: ignore[misc]
    """A Polygraphy runner for an engine of any TensorRT that trtint8 supports.

    Args:
        engine: The engine; an engine that was loaded by the caller is not closed by the runner.
        name: The runner's name in Polygraphy's output; None for a generated one.
        allow_host_code: Whether code that an engine given by its path contains may run; see
            :meth:`trtint8.runtime.engine.Engine.load`.
        plugins: Paths of shared libraries with the plugins that an engine given by its path uses.
    """

    def __init__(
        self,
        engine: EngineSource,
        name: str | None = None,
        *,
        allow_host_code: bool = False,
        plugins: Sequence[FilePath] = (),
    ) -> None:
        super().__init__(name=name, prefix="trtint8-runner")
        self._source, self._allow_host_code, self._plugins = engine, allow_host_code, plugins

    def activate_impl(self) -> None:
        """Loads the engine if a path was given."""
        source = self._source
        if isinstance(source, PATH_TYPES):
            self.engine = Engine.load(source, plugins=self._plugins, allow_host_code=self._allow_host_code)
        else:
            self.engine = source() if callable(source) else source

    def get_input_metadata_impl(self) -> TensorMetadata:
        """Returns names, types and shapes of the inputs."""
        metadata = TensorMetadata()
        for spec in self.engine.inputs:
            metadata.add(spec.name, dtype=spec.dtype, shape=list(spec.shape))
        return metadata

    def infer_impl(self, feed_dict: Mapping[str, Any]) -> OrderedDict[str, Any]:
        """Runs one feed; PyTorch tensors on the GPU are not copied."""
        start = time.perf_counter()
        outputs = OrderedDict(self.engine.infer(feed_dict))
        self.inference_time = time.perf_counter() - start
        return outputs

    def deactivate_impl(self) -> None:
        """Closes the engine if the runner loaded it."""
        if self.engine is not self._source:
            self.engine.close()
        del self.engine
