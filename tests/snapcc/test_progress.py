"""Progress on a terminal and elsewhere."""

import io
import re

import pytest

from snapcc.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_per_step_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    progress = Progress(stream=stream)
    with progress.step("importing"):
        assert stream.getvalue() == "snapcc: importing ..."
    progress.note("done")
    assert stream.getvalue() == "snapcc: importing ... 0.0 s\nsnapcc: done\n"


def test_a_failure_ends_the_line() -> None:
    stream = io.StringIO()

    def fail() -> None:
        with Progress(stream=stream).step("importing"):
            raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        fail()
    assert stream.getvalue() == "snapcc: importing ...\n"


def test_a_terminal_keeps_lines_of_long_steps_only(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    progress = Progress(stream=stream)
    monkeypatch.setattr("snapcc.progress.LONG", float("inf"))
    with progress.step("short"):
        pass
    monkeypatch.setattr("snapcc.progress.LONG", 0.0)
    with progress.step("long"):
        pass
    assert re.search(r"snapcc: long: \d+\.\d s\n", stream.getvalue())
    assert "snapcc: short" not in stream.getvalue()


def test_quiet() -> None:
    stream = io.StringIO()
    progress = Progress(quiet=True, stream=stream)
    with progress.step("importing"):
        progress.note("something")
    assert stream.getvalue() == ""
