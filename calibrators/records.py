"""Files of a user: how they are opened, and JSON documents, held by frozen data classes with limits.

Every file that a user names, or that lies beside one, is opened by :func:`open_file`: a file may have come
from anyone, and a named pipe, a device or a file without end would hang a program or fill its memory.

msgspec turns a document into a data class and refuses what has another type or exceeds a limit, naming the
field. It was chosen because it has no dependencies, its wheel is 0.2 MB, it fills plain frozen data classes,
and it loads in about 20 ms beside NumPy and ONNX. The standard library's parser comes first: it knows the
encodings that shells write, and names line and column of a mistake.

Whoever reads a file writes the message for the user, with what the file is and what to do; the errors of this
module are the part of the message that says what is wrong. :func:`reading` joins them.
"""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import errno
import json
import math
import os
import re
import stat
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from io import BufferedReader
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

import msgspec

from calibrators.checks import FilePath
from calibrators.errors import TrtInt8Error

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

RecordT = TypeVar("RecordT", bound="DataclassInstance")

#: The largest file that is written, and read, in bytes. By far the largest files are tables: this is room for
#: as many histograms as one holds (``MOST_BYTES_OF_COUNTS`` in ``calibrators/tables/formats/json.py``), in
#: base64 and where zlib cannot pack them, and for the names of their tensors.
MOST_BYTES = 320 << 20

#: The most memory that a JSON document may take, in bytes, by the bound of :func:`_memory`.
MOST_MEMORY = 768 << 20

#: Bytes that are read at once of what has no size.
_PIECE = 1 << 20

#: Names of what was opened for this process before it began.
_CONNECTED = re.compile(r"/dev/stdin\Z|/dev/fd/|/proc/self/fd/")

#: A number of things that fits an int64.
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]

#: A number of things that fits an int64, at least one.
PositiveCount = Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]

#: A finite number that is not negative.
NonNegative = Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)]

#: A finite number above zero.
Positive = Annotated[float, msgspec.Meta(gt=0, le=sys.float_info.max)]

#: A finite number that is not negative, and that a float32 holds.
NonNegativeFloat32 = Annotated[float, msgspec.Meta(ge=0, le=3.4028234663852886e38)]

#: A finite number that is not positive, and that a float32 holds.
NonPositiveFloat32 = Annotated[float, msgspec.Meta(ge=-3.4028234663852886e38, le=0)]

#: A probability, from 0 to 1.
Probability = Annotated[float, msgspec.Meta(ge=0, le=1)]

#: Any text, such as a name in a model, but no halves of characters. It may hold control characters, quotes
#: and line breaks: whoever writes it into a file of another language escapes it there.
Text = Annotated[str, msgspec.Meta(pattern=r"^[^\ud800-\udfff]*\Z")]

#: A short text on one line, without control characters: a fingerprint, the name of a tool, a version. A
#: regular expression ends in \Z, because a line break may stand behind ``$``.
Line = Annotated[
    str, msgspec.Meta(pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]*\Z", max_length=200)
]

#: A SHA-256 in hexadecimal digits.
Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$", max_length=64)]


class RecordError(ValueError):
    """A file is too large, is not JSON, or does not hold the record that was expected; says what is wrong."""


@contextlib.contextmanager
def reading(what: str, error_type: type[TrtInt8Error], advice: str = "give another file") -> Iterator[None]:
    """Says in one sentence for the user that a file cannot be read.

    Args:
        what: What is read.
        error_type: The error that is raised.
        advice: What to do about the content.

    Raises:
        TrtInt8Error: An OSError or a :class:`RecordError` was raised.
    """
    try:
        yield
    except OSError as error:
        ways = {IsADirectoryError: "give a file", FileNotFoundError: "check the path"}
        way = ways.get(type(error), "make it readable, or give another file")
        raise error_type(f"cannot read {what}: {error.strerror or error}; {way}") from error
    except RecordError as error:
        raise error_type(f"cannot read {what}: {error}; {advice}") from error


def raise_if_unreadable(error: TrtInt8Error) -> None:
    """Raises an error that says of a file that is there that it cannot be read: what it holds is not known.

    Args:
        error: An error of a reader. It is not raised where there is no file, or one of another kind.
    """
    no_file = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL)
    if isinstance(error.__cause__, OSError) and error.__cause__.errno not in no_file:
        raise error


@contextlib.contextmanager
def decoding(wrong: str, error_type: type[TrtInt8Error], advice: str) -> Iterator[None]:
    """Says in one sentence for the user that a file does not hold what it should.

    Args:
        wrong: What is wrong, with the name of the file, such as "'x.json' is no output of 'trtint8 audit'".
        error_type: The error that is raised.
        advice: What to do.

    Raises:
        TrtInt8Error: A :class:`RecordError` was raised.
    """
    try:
        yield
    except RecordError as error:
        raise error_type(f"{wrong} ({error}); {advice}") from error


def open_file(path: FilePath, most_bytes: int | None = None, *, follow_link: bool = True) -> BufferedReader:
    """Opens a regular file for reading; nothing else is opened, and nothing is waited for.

    Args:
        path: The file.
        most_bytes: The largest file that is opened; None for no limit.
        follow_link: Whether the file may be a symbolic link to another one.

    Raises:
        OSError: It cannot be opened, is no regular file, or is a link that may not be followed.
        RecordError: It is larger than ``most_bytes``, or there can be no file of its name.
    """
    return _opened(path, most_bytes, pipes=False, follow_link=follow_link)


def read_bytes(path: FilePath, most_bytes: int | None = None, *, follow_link: bool = True) -> bytes:
    """Reads a file of a limited size.

    A pipe is read as well where its name says that the user has connected it to this process:
    ``/dev/stdin``, and ``/dev/fd/63``, which a shell makes of ``<(command)``. A named pipe is refused.

    Args:
        path: The file.
        most_bytes: The largest file that is read; :data:`MOST_BYTES` where None.
        follow_link: Whether the file may be a symbolic link to another one.

    Raises:
        OSError: It cannot be read, is no regular file, or is a link that may not be followed.
        RecordError: It is larger than ``most_bytes``, or there can be no file of its name.
    """
    most_bytes = MOST_BYTES if most_bytes is None else most_bytes
    with _opened(path, most_bytes, pipes=True, follow_link=follow_link) as stream:
        # A pipe, and a file that the system makes up, have no size; in memory a file has its own and no more.
        piece = _PIECE + os.fstat(stream.fileno()).st_size
        pieces, left = [], most_bytes + 1
        while left and (data := stream.read(min(left, piece))):
            pieces.append(data)
            left -= len(data)
    if not left:
        raise _too_large(most_bytes)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _opened(path: FilePath, most_bytes: int | None, *, pipes: bool, follow_link: bool) -> BufferedReader:
    # Without O_NONBLOCK, to open a named pipe takes for ever where nobody writes into it.
    names = ("O_NONBLOCK", "O_NOCTTY", "O_BINARY", *(() if follow_link else ("O_NOFOLLOW",)))
    flags = sum(getattr(os, name, 0) for name in names)
    try:
        descriptor = os.open(path, os.O_RDONLY | flags)
    except ValueError as error:
        raise RecordError("its name holds a character that no name can have") from error
    try:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if pipes and stat.S_ISFIFO(found.st_mode) and _CONNECTED.match(os.fspath(path)):
            os.set_blocking(descriptor, True)
        elif not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is a pipe, a device or a socket, and no file", os.fspath(path))
        if most_bytes is not None and found.st_size > most_bytes:
            raise _too_large(most_bytes)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _too_large(most_bytes: int) -> RecordError:
    return RecordError(f"it is larger than {most_bytes:,} bytes")


def decode_text(data: bytes, errors: str = "strict") -> str:
    """The content of a text file, which is UTF-8, or UTF-16 behind a byte-order mark.

    Editors on Windows put such a mark before either; it does not belong to the text.

    Args:
        data: The content, or its beginning.
        errors: What becomes of bytes that are neither, as for ``bytes.decode``.

    Raises:
        UnicodeDecodeError: It is neither, and ``errors`` is "strict".
    """
    utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return data.decode("utf-16" if utf16 else "utf-8-sig", errors)


def parse(data: bytes) -> object:
    """Parses JSON.

    Args:
        data: The document, in UTF-8, UTF-16 or UTF-32.

    Returns:
        Its value, of dicts, lists, str, int, float, bool and None. Like the standard library's, the parser
        takes ``NaN`` and ``Infinity``: the limits of a field decide about them.

    Raises:
        RecordError: It is not JSON, or may take more memory than :data:`MOST_MEMORY`.
    """
    if _memory(data) > MOST_MEMORY:
        raise RecordError(f"it may take more than {MOST_MEMORY:,} bytes of memory")
    try:
        document: object = json.loads(data)
    except UnicodeDecodeError as error:
        raise RecordError("it is not text") from error
    except ValueError as error:
        raise RecordError(str(error)) from error
    except RecursionError as error:
        raise RecordError("it is nested too deeply") from error
    return document


def fits(value: object, kind: Any) -> bool:
    """True if a value has a form, such as :data:`Line`."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def is_readable(data: bytes) -> bool:
    """True if :func:`read` takes a JSON file with this content, as far as its size decides."""
    return len(data) <= MOST_BYTES and _memory(data) <= MOST_MEMORY


def _memory(data: bytes) -> int:
    """A bound of the memory that a JSON document takes, in bytes, with its text.

    A list of empty lists is 27 times as large in memory as in its file. A text with one picture letter is
    four times as large, as Python keeps all letters of a text in the size of the largest; and it is there
    twice, in the text of the document and by itself.
    """
    text = 2 * len(data) * (1 if data.isascii() and b"\\u" not in data else 4)
    containers = data.count(b"[") + data.count(b"{")
    return text + 250 * containers + 60 * (data.count(b'"') // 2) + 40 * (data.count(b",") + containers)


def read(path: FilePath) -> object:
    """Reads a JSON file; see :func:`read_bytes` and :func:`parse`.

    Raises:
        OSError: It cannot be read.
        RecordError: It is too large or not JSON.
    """
    return parse(read_bytes(path))


def to_record(
    document: object,
    record_type: type[RecordT],
    *,
    exact: bool = False,
    numbers_as_text: bool = False,
    null_as_nan: bool = False,
) -> RecordT:
    """Fills a data class, and checks every field's type and limits, at any depth.

    Args:
        document: From :func:`parse`.
        record_type: The data class. What its annotations name has to be imported at run time.
        exact: Whether fields that the data class does not have are refused.
        numbers_as_text: Whether numbers written as text are accepted; :func:`render` writes infinities so.
        null_as_nan: Whether null is read as NaN where a field holds a float and no None; ``--json`` prints
            numbers so that are not finite.

    Raises:
        RecordError: A field is missing, has another type, or exceeds its limits.
    """
    try:
        if exact and isinstance(document, dict):
            _refuse_surplus(document, record_type)
        if null_as_nan:
            document = _with_nan(document, record_type)
        return msgspec.convert(document, record_type, strict=not numbers_as_text)
    except msgspec.ValidationError as error:
        raise RecordError(_in_words(error, document)) from error
    except TrtInt8Error as error:  # a class that checks its own fields
        raise RecordError(error.template) from error
    except UnicodeEncodeError as error:
        raise RecordError(f"the name {error.object!r:.80} holds a lone surrogate") from error
    except RecursionError as error:
        raise RecordError("it is nested too deeply") from error


def _in_words(error: msgspec.ValidationError, document: object) -> str:
    """What is wrong with a document; a text of the wrong form is shown, in place of a regular expression."""
    message = str(error)
    if "matching regex" not in message:
        return message
    place = re.search(r" - at (`key` in )?`\$.*`$", message)
    path, value = place[0] if place else "", document
    with contextlib.suppress(LookupError, TypeError):  # of a mapping the path does not say which value
        for key, index in re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", path):
            value = value[key] if key else value[int(index) if index.isdecimal() else index]  # type: ignore[index]
    shown = f"the text {value!r:.80}" if isinstance(value, str) else "a text"
    return f"{shown} does not have the form of its field{path}"


def read_parts(data: bytes, record_type: type[RecordT]) -> RecordT:
    """Fills a data class from a JSON document of another program, of which it holds a small part.

    What the data class does not have takes no memory, unless the document is no strict JSON: with NaN, or in
    another encoding than UTF-8.

    Args:
        data: The document.
        record_type: The data class, as for :func:`to_record`.

    Raises:
        RecordError: It is not JSON, or a field is missing, has another type, or exceeds its limits.
    """
    try:
        return msgspec.json.decode(data, type=record_type)
    except msgspec.ValidationError as error:
        raise RecordError(str(error)) from error
    except RecursionError as error:
        raise RecordError("it is nested too deeply") from error
    except (msgspec.DecodeError, UnicodeDecodeError):
        return to_record(parse(data), record_type)


def render(record: DataclassInstance, format_name: str | None = None) -> bytes:
    """Writes a data class as JSON in UTF-8 that a person can read.

    Args:
        record: The data class. Bytes become base64; what is not finite becomes the text ``inf``, ``-inf`` or
            ``nan``, since JSON has no such numbers.
        format_name: Value of the field ``format``, which is written first; None leaves the field out.
    """
    named = {} if format_name is None else {"format": format_name}
    document = {**named, **msgspec.to_builtins(record, enc_hook=_builtin)}
    text = json.dumps(_without_infinities(document), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    # File names that are not UTF-8 hold surrogates, which :func:`parse` restores.
    return text.encode("utf-8", "surrogatepass")


class Result:
    """What a public call returns: a data class that says of itself what ``--json`` prints of it."""

    #: Names of the properties that stand in JSON beside the fields.
    _also_in_json: ClassVar[tuple[str, ...]] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns what the verb of this result prints with ``--json``: dicts, lists, texts, numbers and None.

        Numbers that are not finite are None, as JSON has none. The warnings of a verb are those of the whole
        command, and here those that the result keeps.
        """
        return {name: as_json(getattr(self, name)) for name in (*_field_names(self), *self._also_in_json)}


def as_json(value: Any) -> Any:
    """Returns a value as JSON's own types, as ``--json`` prints it.

    Args:
        value: A result, a data class, or what these hold. A number that is not finite becomes None, and what
            JSON does not know, such as a path, its text.
    """
    if isinstance(value, Result):
        return value.to_json()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: as_json(getattr(value, name)) for name in _field_names(value)}
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, frozenset)):
        return [as_json(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, (str, int, bool, type(None))) else str(value)


def _field_names(value: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(value)]


def _refuse_surplus(document: dict[str, Any], record_type: type[DataclassInstance]) -> None:
    known = {field.name for field in dataclasses.fields(record_type)}
    for name in document:
        if name not in known:
            raise RecordError(f"Object contains unknown field `{name}`")


def _with_nan(value: Any, kind: Any) -> Any:
    """A value with NaN in place of every null where its type holds a float and no None."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if value is None:
        kinds = arguments if origin in (typing.Union, types.UnionType) else (kind,)
        return math.nan if float in kinds and type(None) not in kinds else None
    if isinstance(value, dict) and dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return {name: _with_nan(entry, hints.get(name)) for name, entry in value.items()}
    if isinstance(value, dict) and origin is Mapping:
        return {name: _with_nan(entry, arguments[1]) for name, entry in value.items()}
    if isinstance(value, list) and origin is tuple:
        return [_with_nan(entry, arguments[0]) for entry in value]
    return value


def _builtin(value: Any) -> Any:
    """A value of a subclass, such as NumPy's float64, as one of the class that JSON knows."""
    for kind in (float, int, str):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"JSON holds no {type(value).__name__}")


def _without_infinities(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_infinities(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_infinities(entry) for entry in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
