"""Runs a module of chipwise in a Python environment that lacks chipwise: ``python -I run_module.py MODULE``.

chipwise is imported from the folder of this file, all other packages from that environment.
"""

import runpy
import sys
from pathlib import Path
from types import ModuleType

if __name__ == "__main__":
    package = ModuleType("chipwise")
    package.__path__ = [str(Path(__file__).resolve().parents[1])]
    sys.modules["chipwise"] = package
    runpy.run_module(sys.argv[1], run_name="__main__", alter_sys=True)
