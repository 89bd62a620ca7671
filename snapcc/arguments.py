"""The command lines' parser: a wrong use is an exception, shown as every other error is."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn


class UsageError(Exception):
    """A wrong use of the command line; exit status 2."""


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` that takes no abbreviations and raises where argparse would exit."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        """Raises what argparse found wrong.

        Raises:
            UsageError: always.
        """
        raise UsageError(f"{message} ({self.prog} --help tells how it is used)")
