"""Calibrates and quantizes again and again in one process, and shows its memory and its open files.

python scripts/leak_check.py                    # 500 rounds, on the packaged model
python scripts/leak_check.py --rounds 50
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import trtint8
from trtint8.data import DEMO_MODEL, load_digits_split

#: Rounds after which caches of Python and of ONNX Runtime are filled.
_WARM = 50

#: What the process may grow by after that: MiB of resident memory, and open files.
_MOST_MIB, _MOST_FILES = 16, 0


def resident_mib() -> float:
    """The resident memory of this process."""
    line = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")
    )
    return int(line.split()[1]) / 1024


def open_files() -> int:
    """How many descriptors this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))


def main() -> int:
    """Prints memory and files ten times; the exit status is 1 where they grew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=500)
    rounds = parser.parse_args().rounds
    images = load_digits_split().calibration_images[:16]
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.json"
        for number in range(1, rounds + 1):
            trtint8.calibrate(DEMO_MODEL, images, tensors="placed", method="mse", progress=False).save(path)
            trtint8.quantize(DEMO_MODEL, path)
            if number == min(_WARM, rounds) or number % max(1, rounds // 10) == 0:
                figures[number] = resident_mib(), open_files()
                print(f"after {number}: {figures[number][0]:.0f} MiB, {figures[number][1]} files", flush=True)
    first, last = figures[min(_WARM, rounds)], figures[max(figures)]
    grown, more = last[0] - first[0], last[1] - first[1]
    print(f"grown by {grown:.1f} MiB and {more} files")
    return int(grown > _MOST_MIB or more > _MOST_FILES)


if __name__ == "__main__":
    raise SystemExit(main())
