"""Builds the wheel and the source distribution, and installs both in environments of their own.

python scripts/check_packages.py                     # the wheel, and the source with and without a compiler
python scripts/check_packages.py --readme            # only what README tells users to run
python scripts/check_packages.py --extras all        # and every optional dependency by itself
python scripts/check_packages.py --extras report ray --python python3.13

Every environment has to pass `pip check` and `check_installation.py`, away from this folder. On Linux
auditwheel says which manylinux the wheel is for, where it is installed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[1]

#: What counts activations there, with the compiled part or without it.
_KERNEL = """
import importlib.util, trtint8
assert "site-packages" in trtint8.__file__, trtint8.__file__
kernel = importlib.util.find_spec("calibrators.histograms._counting")
print("the compiled kernel counts" if kernel else "NumPy counts")
"""


def run(command: Sequence[str | os.PathLike[str]], **options: Any) -> str:
    """The output of a command; ends the script where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode:
        sys.exit(f"{' '.join(map(os.fspath, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def build(python: str, folder: Path) -> tuple[Path, Path]:
    """Makes the source distribution, and from it the wheel."""
    environment = folder / "build"
    run([python, "-m", "venv", environment])
    run([environment / "bin" / "python", "-m", "pip", "install", "-q", "build"])
    run([environment / "bin" / "python", "-m", "build", "--outdir", folder / "dist", _ROOT])
    (wheel,), (source,) = ((folder / "dist").glob(pattern) for pattern in ("*.whl", "*.tar.gz"))
    return wheel, source


def installed(
    python: str, folder: Path, name: str, package: str, environment: Mapping[str, str] = os.environ
) -> Path:
    """The Python of a new environment with the package in it, which `pip check` finds sound."""
    run([python, "-m", "venv", folder / name])
    made = folder / name / "bin" / "python"
    run([made, "-m", "pip", "install", "-q", package], cwd=_ROOT, env=dict(environment))
    run([made, "-m", "pip", "check"])
    return made


def try_out(python: Path, folder: Path) -> str:
    """Uses the installed package: the command, and all that it can do."""
    run([python.parent / "trtint8", "--help"], cwd=folder)
    checked = run([python, _ROOT / "scripts/check_installation.py"], cwd=folder).strip()
    return f"{checked}, {run([python, '-c', _KERNEL], cwd=folder).strip()}"


def main() -> None:
    """Prints one line per environment."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--readme", action="store_true", help="only README's own command")
    parser.add_argument("--extras", nargs="*", default=[], help="optional dependencies to install; or all")
    options = parser.parse_args()
    os.environ.pop("PYTHONPATH", None)  # what is installed is tried
    if options.readme:
        readme = (_ROOT / "README.md").read_text(encoding="utf-8")
        [package] = re.findall(r'`pip install "(\.\[[^`]*\])"` installs the library', readme)
        with tempfile.TemporaryDirectory() as name:
            python = installed(options.python, Path(name), "readme", package)
            print(f'pip install "{package}":', try_out(python, Path(name)))
        return
    import tomllib  # new in Python 3.11

    known = list(tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    extras = known if options.extras == ["all"] else options.extras
    if unknown := set(extras) - set(known):
        parser.error(f"there is no extra {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel, source = build(options.python, folder)
        print(wheel.name, source.name)
        if auditwheel := shutil.which("auditwheel"):
            print(" ".join(run([auditwheel, "show", wheel]).split()))
        python = installed(options.python, folder, "wheel", os.fspath(wheel))
        print("wheel:", try_out(python, folder), flush=True)
        python = installed(options.python, folder, "source", os.fspath(source))
        print("source:", try_out(python, folder), flush=True)
        without = {**os.environ, "CC": "no-compiler-here", "PATH": os.fspath(folder / "empty")}
        python = installed(options.python, folder, "without-compiler", os.fspath(source), without)
        print("source without a compiler:", try_out(python, folder), flush=True)
        for extra in extras:
            python = installed(options.python, folder, f"extra-{extra}", f"{wheel}[{extra}]")
            print(f"{extra}:", try_out(python, folder), flush=True)
            shutil.rmtree(folder / f"extra-{extra}")


if __name__ == "__main__":
    main()
