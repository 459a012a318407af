"""Lets one interpreter see what one installation brings, and nothing else that is installed here."""

import sys
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def limit_to(*requirements):
    """Hides the modules and the metadata of all packages that the requirements and theirs do not bring."""
    brought = _brought_by(requirements)
    here, elsewhere = set(), set()
    for package in metadata.distributions():
        is_brought = canonicalize_name(package.metadata["Name"]) in brought
        tops = {package.locate_file(path.parts[0]) for path in package.files or ()}
        (here if is_brought else elsewhere).update(map(str, tops))
    hidden = elsewhere - here

    class Finder(PathFinder):
        """Finds as Python does what is not hidden."""

        @classmethod
        def find_spec(cls, fullname, path=None, target=None):
            spec = super().find_spec(fullname, path, target)
            # A package may have its own copy of another one, which is elsewhere.
            return None if spec and hidden & {spec.origin, *(spec.submodule_search_locations or ())} else spec

        @staticmethod
        def find_distributions(context):
            found = PathFinder.find_distributions(context)
            return (one for one in found if canonicalize_name(one.metadata["Name"]) in brought)

    sys.meta_path[:] = [Finder if finder is PathFinder else finder for finder in sys.meta_path]
    names = {Path(path).name.partition(".")[0] for path in hidden}
    for name in [name for name in sys.modules if name.partition(".")[0] in names]:
        del sys.modules[name]


def missing(requirement):
    """The packages that a requirement and its own lack here."""
    return sorted(_brought_by([requirement], installed=False))


def _brought_by(requirements, *, installed=True):
    """The packages that requirements and theirs name, those that are installed here or those that are not."""
    waiting, seen, there, lacking = [Requirement(text) for text in requirements], set(), set(), set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        try:
            needed = [Requirement(text) for text in metadata.requires(name) or ()]
        except metadata.PackageNotFoundError:
            lacking.add(name)
            continue
        there.add(name)
        for extra in {"", *requirement.extras} - {extra for one, extra in seen if one == name}:
            seen.add((name, extra))
            waiting += [one for one in needed if not one.marker or one.marker.evaluate({"extra": extra})]
    return there if installed else lacking
