"""Programs of kv ops written as text, lowered, compiled by IREE and run: what the tests of the lowering share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch_mlir import ir

from snapcc.compiler.passes import manager
from snapcc.compiler.passes.pipelines import lower_to_iree, lower_to_linalg
from snapcc.runtime.iree_compile import compile_module, target_flags


def tensor(shape: Sequence[int], element: str) -> str:
    """The text of a builtin tensor type."""
    return f"tensor<{''.join(f'{d}x' for d in shape)}{element}>"


def function(name: str, op: str, operands: Sequence[str], result: str, attributes: str = "") -> str:
    """A function whose arguments are the operands of one op on builtin tensors and whose result is the op's."""
    names = [f"%a{i}" for i in range(len(operands))]
    arguments = ", ".join(f"{n}: {t}" for n, t in zip(names, operands, strict=True))
    return f"""
func.func @{name}({arguments}) -> {result} {{
  %0 = "{op}"({", ".join(names)}) {{{attributes}}} : ({", ".join(operands)}) -> {result}
  return %0 : {result}
}}"""


def parse(text: str) -> ir.Module:
    """A module in a new context."""
    with manager.new_context(), ir.Location.unknown():
        return ir.Module.parse(text)


def lowered(text: str) -> bytes:
    """The module of a text in the form that iree-compile takes."""
    module = parse(text)
    manager.run(module, [*lower_to_linalg(), *lower_to_iree()])
    return module.operation.get_asm().encode()


class Program:
    """A compiled module whose functions take and give NumPy arrays."""

    def __init__(self, text: str, folder: Path) -> None:
        """Lowers and compiles ``text``, keeping the .vmfb in ``folder``."""
        import iree.runtime

        path = folder / "program.vmfb"
        compile_module(lowered(text), path, target_flags("cpu"))
        self._runtime = iree.runtime
        config = iree.runtime.Config("local-sync")
        self._device = config.device
        self._module = iree.runtime.load_vm_modules(
            iree.runtime.VmModule.mmap(config.vm_instance, str(path)), config=config
        )[-1]

    def device_array(self, array: np.ndarray) -> Any:
        """A buffer on the device, which calls update in place where it is a state."""
        return self._runtime.asdevicearray(self._device, array)

    def __call__(self, name: str, *arguments: Any) -> Any:
        """The one result of a function, as an array."""
        result = self._module[name](*arguments)
        return np.array(result.to_host(), copy=True) if hasattr(result, "to_host") else result
