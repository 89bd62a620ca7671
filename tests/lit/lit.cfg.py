"""How lit runs the tests below this folder: the tools come from the Python environment that runs lit."""

import sys
from pathlib import Path

import lit.formats

config.name = "snapcc"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir"]
config.test_source_root = str(Path(__file__).parent)
config.test_exec_root = str(Path(__file__).parents[2] / "build" / "lit")
config.substitutions.append(("snapcc-opt", f"{sys.executable} -m snapcc.opt"))
config.substitutions.append(("filecheck", str(Path(sys.executable).with_name("filecheck"))))
