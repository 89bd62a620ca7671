"""The program as networkx graphs."""

from __future__ import annotations

import networkx as nx
from linalg_programs import Shape, decoder, parse

from snapcc.sn40l_target.graph import Program, read_program
from snapcc.sn40l_target.machine import SN40L

SHAPE = Shape()


def program() -> Program:
    return read_program(parse(decoder(SHAPE)), SN40L.tiers[0].legal)


def test_functions_and_what_they_share() -> None:
    found = program()
    assert list(found.functions) == ["decode", "prefill_16", "reset"]
    assert {n for n, b in found.shared.items() if b.kind == "cache"} == {
        f"state:cache_{part}_{layer}" for part in "kv" for layer in range(SHAPE.layers)
    }
    assert found.shared["embed.weight"].bytes == SHAPE.vocab * SHAPE.width * 4
    assert "embed.weight" in found.functions["decode"].buffers
    assert "embed.weight" in found.functions["prefill_16"].buffers
    assert "embed.weight" not in found.functions["reset"].buffers


def test_nodes_are_ops_in_order_and_edges_are_tensors() -> None:
    graph = program().functions["decode"].graph
    assert nx.is_directed_acyclic_graph(graph)
    positions = [p for _, p in graph.nodes(data="position")]
    assert positions == sorted(positions)
    assert all(graph.nodes[a]["position"] < graph.nodes[b]["position"] for a, b in graph.edges())
    embed = graph.nodes["decode:3"]
    assert embed["op"] == "linalg.generic"
    assert embed["location"].startswith("-:")
    assert embed["bytes"] == SHAPE.batch * SHAPE.width * 4
    assert embed["works"]
    edge = graph.edges["decode:arg0", "decode:3", "decode:arg0"]
    assert edge == {"shape": (SHAPE.batch,), "dtype": "i64", "bytes": SHAPE.batch * 8, "buffer": "decode:arg0"}


def test_a_tensor_that_only_a_region_reads_is_an_edge() -> None:
    graph = program().functions["decode"].graph
    assert graph.has_edge("decode:0", "decode:3")


def test_nothing_runs_for_views_constants_blanks_and_states_in_place() -> None:
    for function in program().functions.values():
        idle = {data["op"] for _, data in function.graph.nodes(data=True) if not data["works"]}
        assert idle <= {
            "argument",
            "arith.constant",
            "arith.index_cast",
            "func.return",
            "kv.parameter",
            "kv.state_load",
            "kv.state_store",
            "linalg.fill",
            "tensor.collapse_shape",
            "tensor.empty",
            "tensor.expand_shape",
            "tensor.extract_slice",
        }
        assert not function.moves


def test_lifetimes_start_where_a_tensor_is_made_and_end_where_it_is_last_read() -> None:
    function = program().functions["decode"]
    for name, life in function.lifetimes.items():
        readers = [
            function.graph.nodes[b]["position"]
            for _, b, data in function.graph.edges(data=True)
            if data["buffer"] == name
        ]
        assert life.first <= life.last <= max(readers, default=life.last)
        if name.startswith("decode:arg"):
            assert life.first == 0
        elif name.startswith("decode:") and not name.endswith("scratch"):
            assert life.first == function.graph.nodes[name]["position"]
