"""Results of entries, and the page that shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Outcome = Literal["agrees", "refused", "fault"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


@dataclass(frozen=True)
class Result:
    """What became of an entry.

    Attributes:
        name: the entry's.
        group: its group.
        kind: its attention, and its kinds of layers where there are several.
        outcome: equal to the oracle; refused with a message; or neither, which is a fault.
        exported: whether torch.export took the model.
        difference: the largest distance of a logit from the oracle's; None where it did not run.
        message: why it does not agree; empty where it does.
    """

    name: str
    group: str
    kind: str
    outcome: Outcome
    exported: bool = True
    difference: float | None = None
    message: str = ""


HEAD = """\
<!-- made by `make zoo` -->

# Coverage

What becomes of transformers' causal language models, each tiny and random, from its own configuration and code
(`tests/zoo/models.py`), exported by the frontend and compiled with `--kv snapstream`: 16 slots (2 sinks, a ring of 10,
4 selected), batch 2, prompts of 48 and 5 tokens, 32 new tokens each, which go around the ring.

- `agrees`: in f32 every logit lies within 1e-3 of PyTorch's with everything masked that the policy drops, in units of
  the step's largest where that is above 1, and every token is PyTorch's own choice. The prompts' logits are those of
  the unmodified model.
- `refused`: nothing was compiled, with the reason.
- `fault`: anything else.

The group `further` is what the library has beyond the first groups, with variants of its families' configurations;
`cacheless` are models that keep no keys and values, of which nothing can be made.

`make zoo` measures what has no result under `build/zoo` yet, `.venv/bin/python -m tests.zoo --only NAME ...` anew.
"""


def page(results: Sequence[Result], entries: Mapping[str, Sequence[str]]) -> str:
    """Everything as Markdown; ``entries`` are the names of each group."""
    measured = {result.name for result in results}
    missing = [f"`{name}`" for group in entries.values() for name in group if name not in measured]
    rows = [
        "| entry | group | attention | result | differs by | why |",
        "|---|---|---|---|---|---|",
        *(_row(result) for result in results),
    ]
    notes = [f"Not measured yet: {', '.join(missing)}.", ""] if missing else []
    return "\n".join([HEAD, *summary(results, entries), "", *notes, *rows]) + "\n"


def summary(results: Sequence[Result], entries: Mapping[str, Sequence[str]]) -> list[str]:
    """A table of how many there are of each outcome, a line per group."""
    lines = [
        "| group | entries | measured | torch.export takes | agree | of these | refused | fault |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for group, names in entries.items():
        own = [result for result in results if result.group == group]
        taken = sum(result.exported for result in own)
        counts = [sum(r.outcome == outcome and r.exported for r in own) for outcome in OUTCOMES]
        share = f"{counts[0] / taken:.0%}" if taken else ""
        lines.append(
            f"| {group} | {len(names)} | {len(own)} | {taken} | {counts[0]} | {share} | {counts[1]} | {counts[2]} |"
        )
    return lines


def _row(result: Result) -> str:
    difference = "" if result.difference is None else f"{result.difference:.1e}"
    message = " ".join(result.message.split()).replace("|", "\\|")
    return f"| `{result.name}` | {result.group} | {result.kind} | {result.outcome} | {difference} | {message} |"
