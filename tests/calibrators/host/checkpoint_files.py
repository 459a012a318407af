"""Checkpoints of which something is changed, and whose checksum is right all the same."""

import hashlib
import json

_MARK = b"\nsha256:"


def document_of(path):
    """The JSON of a checkpoint."""
    return json.loads(path.read_bytes().rpartition(_MARK)[0])


def sealed(document):
    """The content of a checkpoint with this JSON."""
    content = json.dumps(document).encode()
    return content + _MARK + hashlib.sha256(content).hexdigest().encode()


def change(path, work):
    """Changes the JSON of a checkpoint in place."""
    document = document_of(path)
    work(document)
    path.write_bytes(sealed(document))
