"""``snapcc plan``: the points, the table, the plot, naive against ring."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import decoders
import pytest
import torch

from snapcc import cli
from snapcc.arguments import UsageError
from snapcc.sweep import parse_sweep, plot, table


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sweep") / "model.pt2"
    torch.export.save(next(d for d in decoders.GOOD if d.name == "monocle").program(), path)
    return path


def test_what_a_sweep_says() -> None:
    assert parse_sweep(["slots=512,1024,batch=1,4", "machine=sn40l"]) == {
        "slots": ["512", "1024"],
        "batch": ["1", "4"],
        "machine": ["sn40l"],
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sots=1", "--sweep takes slots, batch, prompt, kv, machine, got 'sots'"),
        ("1,2", "KEY=VALUE"),
        ("slots=", "KEY=VALUE"),
        ("slots=1,slots=2", "has slots twice"),
        ("batch=0", "batch takes whole numbers of at least 1, got '0'"),
    ],
)
def test_a_wrong_sweep_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_sweep([text])


def test_a_sweep_over_slots_policies_and_machines(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = tmp_path / "small.toml"
    text = (Path(__file__).parents[2] / "sn40l_target/machines/sn40l.toml").read_text()
    # 64 GiB and 1.5 TB of memory as 4,096 bytes each
    small.write_text(text.replace("68_719_476_736", "4096").replace("1_500_000_000_000", "4096"))
    drawn = tmp_path / "plot.svg"
    points = f"slots=16,32,kv=naive,snapstream,machine=sn40l,{small}"
    status = cli.main(
        ["plan", str(model), "--sweep", points, "--prompt", "20", "--json", "--quiet", "--plot", str(drawn)]
    )
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    assert status == 0
    assert len(rows) == 8
    fits = {(r["slots"], r["kv"]): r for r in rows if r["machine"] == "sn40l"}
    assert all("DDR lacks" in r["error"] for r in rows if r["machine"] != "sn40l")
    # the caches of twice as many slots are about twice as large, and half as many rows of them fit
    ring, larger = fits["16", "snapstream"], fits["32", "snapstream"]
    assert larger["caches"] == pytest.approx(2 * ring["caches"], rel=0.01)
    assert larger["largest_batch"] == pytest.approx(ring["largest_batch"] / 2, rel=0.01)
    # as many slots as fit, at any number of them
    assert larger["largest_context"] == pytest.approx(ring["largest_context"], rel=0.01)
    assert larger["largest_context"] == pytest.approx(32 * larger["largest_batch"], rel=0.01)
    assert ring["step_best"] <= ring["step"] <= ring["step_worst"]
    # slice and concat move whole caches through values of one call; the ring's step writes rows in place
    naive = fits["32", "naive"]
    assert naive["caches"] == larger["caches"]
    assert naive["sram"] > larger["sram"]
    assert naive["temporaries"]["activation"] > larger["temporaries"]["activation"]
    shown = table(rows)
    assert "naive against snapstream (slots 32, machine sn40l): SRAM" in shown
    assert shown.splitlines()[0].split()[:3] == ["slots", "kv", "machine"]
    root = ElementTree.fromstring(drawn.read_text())
    lines = root.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 2
    assert plot(rows) == drawn.read_text()


def test_no_point_that_fits_is_a_failure(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = cli.main(["plan", str(model), "--sweep", "slots=1", "--quiet"])
    assert status == 1
    assert "1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--causal-mask=m", "--causal-mask m: the program has no such input"),
        ("--input=tokens=m", "--input tokens=m: the program has no such input"),
    ],
)
def test_inputs_are_named_as_for_compiling(
    model: Path, option: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", str(model), option, "--quiet"]) == 1
    assert message in capsys.readouterr().err
