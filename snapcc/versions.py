"""The versions of what a compilation uses."""

from __future__ import annotations

import importlib.metadata

_TOOLS = ("torch", "torch-mlir", "iree-base-compiler", "iree-base-runtime", "transformers", "numpy")


def tools() -> dict[str, str]:
    """The version of each package that a result depends on, snapcc's own aside."""
    return {package: importlib.metadata.version(package) for package in _TOOLS}


def own() -> str:
    """snapcc's version."""
    return importlib.metadata.version("snapcc")
