"""``python scripts/gpu_checks``: see ``--help``."""

import sys
from pathlib import Path

# Run as a folder, which does not make a package of it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpu_checks.main import main

sys.exit(main(sys.argv[1:]))
