"""Runs a module of chipwise in a Python environment that lacks chipwise: ``python -I run_module.py MODULE``.

Only chipwise itself is found through this file's place, so no other package of its environment mixes with those there.
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
