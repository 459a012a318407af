"""Makes the packages among the scripts importable."""

import sys
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "scripts"
if str(SCRIPTS) not in sys.path:
    sys.path.append(str(SCRIPTS))
