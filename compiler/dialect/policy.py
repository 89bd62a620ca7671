"""What a compressed cache keeps: the one mechanism behind every preset (design section 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

PoolKind = Literal["avg", "max", "none"]
Score = Literal["candidates", "all"]
Order = Literal["ring", "time"]
"""How the R recent tokens stand in their slots: at ``S + (t - S) mod R``, or from the oldest to the newest."""


@dataclass(frozen=True)
class Policy:
    """Slots of one layer's cache and how prefill fills the selected ones.

    Layout of the ``slots`` = S + R + K slots along the cache axis: ``[sink S | ring R | selected K]``.

    Raises:
        ValueError: with the rule and the values that break it.
    """

    sink: int
    recent: int
    topk: int
    window: int
    pool: PoolKind = "avg"
    pool_size: int = 5
    score: Score = "candidates"

    def __post_init__(self) -> None:
        for name in ("sink", "topk"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.recent < 1:
            raise ValueError(f"recent must be at least 1 (the new token needs a slot), got {self.recent}")
        if not 1 <= self.window <= self.recent:
            raise ValueError(
                f"the observation window must lie in the recent window: 1 <= window <= recent, "
                f"got window {self.window}, recent {self.recent}"
            )
        if self.pool not in get_args(PoolKind):
            raise ValueError(f"pool must be one of {', '.join(get_args(PoolKind))}, got {self.pool!r}")
        if self.score not in get_args(Score):
            raise ValueError(f"score must be one of {', '.join(get_args(Score))}, got {self.score!r}")
        if self.pool != "none" and (self.pool_size < 1 or self.pool_size % 2 == 0):
            raise ValueError(f"the pooling kernel must be odd and positive, got {self.pool_size}")

    @property
    def slots(self) -> int:
        """C = S + R + K."""
        return self.sink + self.recent + self.topk

    def slot(self, position: int) -> int:
        """The slot of a token: ``t`` if t < S, else ``S + (t - S) mod R``."""
        if position < self.sink:
            return position
        return self.sink + (position - self.sink) % self.recent

    def selected(self, length: int) -> int:
        """n = clip(L - S - R, 0, K): how many selected slots a prompt of ``length`` tokens fills."""
        return min(max(length - self.sink - self.recent, 0), self.topk)
