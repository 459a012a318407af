"""What is no table, but is given for one: the engine that stands beside it."""

from __future__ import annotations

import os
from pathlib import Path

from calibrators.errors import TableError

#: Every plan begins with a letter, these and a header of numbers, in which there are zeros.
_MAGIC = b"trt"
_HEADER = slice(4, 64)


def refuse_engine(data: bytes, path: str | os.PathLike[str]) -> None:
    """Refuses an engine where a table is wanted.

    Args:
        data: The file's content.
        path: The file.

    Raises:
        TableError: It is an engine of TensorRT.
    """
    if data[1:4] == _MAGIC and b"\0" in data[_HEADER]:
        beside = Path(path).with_name(f"{Path(path).stem}.table.json").name
        raise TableError(
            f"'{os.fspath(path)}' is an engine and holds no table; give the table that it was built with, "
            f"which 'trtint8 build' writes beside it as '{beside}'"
        )
