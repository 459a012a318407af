"""The results as few and small files, for a machine from which little can be carried back."""

from __future__ import annotations

import io
import shutil
import tarfile
from pathlib import Path

#: Engines are large, and made again in seconds.
LEFT_OUT = ("engines",)
PART_BYTES = 15 << 20
MOST_PARTS = 6
_PAGES = ("gpu_check.md", "gpu_check.json")


def pack(results: Path, target: Path) -> list[Path]:
    """Writes the report, and everything else in an archive that is cut into parts.

    Args:
        results: The folder that the checks wrote.
        target: The folder for the files; archives of an earlier run there are replaced.

    Returns:
        The files. ``cat results.tar.xz.* | tar -xJ`` unpacks the parts; where there would be too many, the
        largest files are left out and named in ``left_out.txt``.
    """
    target.mkdir(parents=True, exist_ok=True)
    for old in target.glob("results.tar.xz.*"):
        old.unlink()
    written = []
    for page in _PAGES:
        if (results / page).is_file():
            written.append(Path(shutil.copy(results / page, target / page)))
    files = sorted(
        (
            path
            for path in results.rglob("*")
            if path.is_file() and path.relative_to(results).parts[0] not in LEFT_OUT
        ),
        key=lambda path: path.stat().st_size,
    )
    left_out: list[Path] = []
    while len(archive := _archive(files, results)) > MOST_PARTS * PART_BYTES:
        left_out.append(files.pop())
    for number, start in enumerate(range(0, len(archive), PART_BYTES)):
        part = target / f"results.tar.xz.{number:02}"
        part.write_bytes(archive[start : start + PART_BYTES])
        written.append(part)
    (target / "left_out.txt").unlink(missing_ok=True)
    if left_out:
        names = "".join(f"{path.relative_to(results)}\n" for path in left_out)
        (target / "left_out.txt").write_text(names)
        written.append(target / "left_out.txt")
    return written


def _archive(files: list[Path], root: Path) -> bytes:
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w:xz", preset=3) as archive:
        for path in sorted(files):
            archive.add(path, path.relative_to(root).as_posix())
    return memory.getvalue()
