"""One stage, in a process of its own: ``python -m gpu_checks.child MODULE SETTINGS``."""

from __future__ import annotations

import importlib
import sys

from gpu_checks.checking import Check, Settings

if __name__ == "__main__":
    module, settings = sys.argv[1:]
    importlib.import_module(module).run(Check(Settings.from_json(settings)))
