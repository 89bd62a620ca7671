"""A plan to look at: occupancy over time, the page in a real browser, the Chrome trace, Model Explorer's graph."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from linalg_programs import Shape, decoder, parse

from snapcc.sn40l_target.explorer import explorer_json
from snapcc.sn40l_target.machine import SN40L, Figure
from snapcc.sn40l_target.occupancy import occupancy
from snapcc.sn40l_target.plan import plan
from snapcc.sn40l_target.report import Before, report_html
from snapcc.sn40l_target.schema import Plan
from snapcc.sn40l_target.trace import trace_json

MODULE = parse(decoder(Shape(layers=2, dim=64, ffn=256)))
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def planned() -> Plan:
    """On so little SRAM, in so many sections, that tensors are spilled."""
    few = Figure(value=8, unit="units", source="test")
    return plan(MODULE, SN40L.model_copy(update={"compute_units": few}).with_capacities({"SRAM": 8192}), patience=20)


def test_occupancy_is_what_stands_there(planned: Plan) -> None:
    for function in planned.functions:
        steps = occupancy(planned, function)
        sections = {s.name: s.ops for s in planned.sections if s.function == function}
        assert [s.section for s in steps] == [t.section for t in planned.schedule if t.function == function]
        before = -1
        for step in steps:
            last = sections[step.section][-1]
            for tier in planned.machine.tiers:
                shared = {t.name: t.bytes for t in planned.tensors if t.shared and t.tier == tier.name}
                own = [t for t in planned.tensors if t.function == function and not t.shared and t.tier == tier.name]
                here = sum(t.bytes for t in own if t.first_use <= last and before < t.last_use)
                assert step.total(tier.name) == sum(shared.values()) + here
                assert step.total(tier.name) <= tier.bytes
            before = last


def test_the_trace_has_every_section_in_time(planned: Plan) -> None:
    trace = json.loads(trace_json(planned))
    events = trace["traceEvents"]
    for pid, function in enumerate(planned.functions):
        own = [e for e in events if e["pid"] == pid]
        (name,) = [e["args"]["name"] for e in own if e["name"] == "process_name"]
        assert name == function
        ran = [e for e in own if e["ph"] == "X" and e["tid"] == 0]
        assert [e["name"] for e in ran] == [s.name for s in planned.sections if s.function == function]
        ends = [e["ts"] + e["dur"] for e in ran]
        assert all(e["ts"] >= end - 1e-9 for e, end in zip(ran[1:], ends, strict=False))
        seconds = next(t.seconds for t in planned.time if t.function == function)
        assert ends[-1] == pytest.approx(seconds * 1e6)
        counters = [e for e in own if e["ph"] == "C"]
        assert {e["name"] for e in counters} == {f"{t.name} bytes" for t in planned.machine.tiers}
        assert len(counters) == len(ran) * len(planned.machine.tiers)
    assert any(e["name"].startswith("fills and spills") for e in events)


def test_model_explorers_graph_is_whole(planned: Plan) -> None:
    collection = json.loads(explorer_json(MODULE, planned))
    assert [g["id"] for g in collection["graphs"]] == list(planned.functions)
    tensors = {(t.function, t.name, t.tier, t.offset): t.bytes for t in planned.tensors}
    for graph in collection["graphs"]:
        nodes = {n["id"]: n for n in graph["nodes"]}
        assert len(nodes) == len(graph["nodes"])
        assert {n["namespace"] for n in graph["nodes"]} >= {
            s.name for s in planned.sections if s.function == graph["id"]
        }
        for node in graph["nodes"]:
            assert all(edge["sourceNodeId"] in nodes for edge in node["incomingEdges"])
            for output in node["outputsMetadata"]:
                shown = {pair["key"]: pair["value"] for pair in output["attrs"]}
                key = (graph["id"], shown["tensor"], shown["tier"], int(shown["offset"]))
                assert tensors[key] == int(shown["bytes"])
        timed = [n for n in graph["nodes"] if any(pair["key"] == "section_us" for pair in n["attrs"])]
        assert len(timed) == sum(len(s.ops) for s in planned.sections if s.function == graph["id"])


def rendered(page: Path, fragment: str) -> str:
    """The page's DOM once its script has run."""
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"]
    done = subprocess.run(
        [*command, "--virtual-time-budget=4000", "--dump-dom", f"{page.as_uri()}#{fragment}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "CONSOLE" not in done.stderr, done.stderr
    return done.stdout


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; .ci/run installs it")
def test_the_page_shows_the_plan_in_a_browser(planned: Plan, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(report_html(planned, "a </script><b>title</b>", [Before("keys", 4096, 1024)]))
    for function in planned.functions:
        dom = rendered(page, function)
        body = dom[dom.index("<main") :]
        sections = [s for s in planned.sections if s.function == function]
        for section in sections:
            assert f"<code>{html.escape(section.name.removeprefix(f'{function}:'), quote=False)}</code>" in body
        own = [t for t in planned.schedule if t.function == function]
        tips = re.findall(r'data-tip="([^"]*)"', body)
        assert sum("bound by" in tip and "launch" in tip for tip in tips) == len(own)
        assert "4.0 times fewer bytes" in body
        whole = [t for t in planned.tensors if t.function == function and t.of is None]
        biggest = max(whole, key=lambda t: t.bytes)
        assert f"<code>{html.escape(biggest.name)}</code>" in body
        assert f"<td>{biggest.tier}</td>" in body
    assert "a &lt;/script&gt;&lt;b&gt;title&lt;/b&gt;" in dom


def test_the_page_stands_alone(planned: Plan) -> None:
    page = report_html(planned, "title")
    assert not re.findall(r"""(?:src|href)\s*=|url\(|@import|https?://(?!www\.w3\.org/2000/svg)""", page)
    data: Any = json.loads(page[page.index("const plan = ") + 13 : page.index(";\nconst KINDS")].replace("<\\/", "</"))
    assert [f["name"] for f in data["functions"]] == list(planned.functions)
    assert data["caches"] == []
