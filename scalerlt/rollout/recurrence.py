"""Tokens on their way through the loops: one in flight per slot, each at a loop of its own.

All loops have the same weights, so one batch runs the next loop of every token whichever that is: a token that enters
its first loop beside one that enters its last (continuous depth batching, arXiv 2608.09444).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

import torch
from torch import Tensor

from scalerlt.models.ouro import Attend, OuroForCausalLM
from scalerlt.numerics.precision import internal_dtype
from scalerlt.rollout.exit_rule import ExitRule
from scalerlt.rollout.kv_cache import KVCache, Row
from scalerlt.rollout.stats import RolloutStats

SkippedKV = Literal["last_exited", "deferred_fill", "shared_kv"]
"""What later tokens read in place of the K/V of loops that a token left out. `last_exited`: those of its last loop,
copied. `deferred_fill`: the loops' own, computed with the first later token that needs them. `shared_kv`: all loops
write and read one plane, so a token's newest, whichever loop the reader is in."""

FIXED_ROWS = 32
"""Rows of each batch where results must not depend on how many tokens are in flight."""

T = TypeVar("T")


class Loop(Protocol):
    """One loop of the layers over rows."""

    def __call__(self, loop: int, x: Tensor, cos: Tensor, sin: Tensor, *, attend: Attend) -> Tensor:
        """States [n, H] to states [n, H]; see `OuroForCausalLM.loop`."""
        ...


@dataclass
class _InFlight:
    """A token of a slot.

    Attributes:
        position: where it stands.
        limit: the loop, from 1, after which it stops at the latest.
        asks: whether the exit gate may stop it earlier.
        loops: that it has run.
        due: whether the gate has said stop in the loop before, for a rule with a delay.
    """

    position: int
    limit: int
    asks: bool
    loops: int = 0
    due: bool = False


class Recurrence:
    """The tokens in flight and their states.

    Args:
        model: whose loops are run.
        cache: where K/V are.
        slots: places for tokens, as many as the cache has.
        capacity: positions of each.
        rule: when a token stops; None: at full depth.
        kv: what stands for the K/V of loops that are left out.
        fixed_rows: every batch has this many rows; one that has fewer runs its first several times, for nothing.
            None: as many as there are.
        stats: takes the count of all that is done.
        loop: runs one loop of rows [n, H], as `CapturedLoop` does; None: `OuroForCausalLM.loop`.
    """

    def __init__(
        self,
        model: OuroForCausalLM,
        cache: KVCache,
        *,
        slots: int,
        capacity: int,
        rule: ExitRule | None,
        kv: SkippedKV,
        fixed_rows: int | None,
        stats: RolloutStats,
        loop: Loop | None = None,
    ) -> None:
        self._model = model
        self._loop: Loop = loop or model.loop
        self._cache = cache
        self._full_depth = model.config.total_ut_steps
        self._rule = rule or ExitRule(threshold=1.0, min_loops=self._full_depth)
        self._kv = kv
        self._fixed_rows = fixed_rows
        self._stats = stats
        self._tokens: list[_InFlight | None] = [None] * slots
        # Of `deferred_fill`: positions of each slot that have not run all loops, in order, and how many they have.
        self._left: list[dict[int, int]] = [{} for _ in range(slots)]
        # States are kept by slot, or where positions are taken up again later, by slot and position.
        self._kept = capacity if kv == "deferred_fill" else 1
        device = model.device
        self._hidden = torch.zeros(slots * self._kept, model.config.hidden_size, dtype=model.dtype, device=device)
        self._remaining = torch.ones(slots * self._kept, dtype=internal_dtype(model.dtype), device=device)
        self._cos, self._sin = model.rotary(torch.arange(capacity, device=device))

    def begin(
        self, slots: Sequence[int], tokens: Sequence[int], positions: Sequence[int], forced: Sequence[int | None]
    ) -> None:
        """Puts a token in flight in each of the slots.

        Args:
            slots: that have none.
            tokens: ids.
            positions: where they stand.
            forced: the depth at which each stops whatever the rule and the gate say, or None.
        """
        for slot, position, depth in zip(slots, positions, forced, strict=True):
            limit = depth or self._rule.max_loops or self._full_depth
            self._tokens[slot] = _InFlight(position, limit, asks=self._rule.asks_gate and depth is None)
        places = self._places(slots, positions)
        self._hidden[places] = self._model.embed(torch.tensor(tokens, device=self._model.device))
        self._remaining[places] = 1.0

    @property
    def in_flight(self) -> bool:
        """Whether any token is on its way."""
        return any(token is not None for token in self._tokens)

    def has(self, slot: int) -> bool:
        """Whether the slot has a token in flight."""
        return self._tokens[slot] is not None

    def run_loop(self, slots: Sequence[int]) -> dict[int, int]:
        """Runs the next loop of the tokens in these slots, and of earlier ones whose K/V of that loop they need.

        Returns:
            The slots whose tokens stopped, with their depths, from 1. `take` gives their states.
        """
        tokens = [self._token(slot) for slot in slots]
        late = [row for slot, token in zip(slots, tokens, strict=True) for row in self._late_rows(slot, token.loops)]
        rows = late + [Row(slot, token.position, token.loops) for slot, token in zip(slots, tokens, strict=True)]
        rows.sort(key=self._cache.place)
        asks = any(token.asks for token in tokens)
        for batch in self.batches(rows):
            self._run(batch, asks)
        self._count(rows, late, asks)
        stopping = self._gate_says_stop(slots, tokens) if asks else [False] * len(tokens)
        stopped = {}
        for slot, token, says in zip(slots, tokens, stopping, strict=True):
            token.loops += 1
            if token.loops == token.limit or (token.due if self._rule.delay else says):
                stopped[slot] = token.loops
            token.due = says
        self._leave(stopped)
        return stopped

    def take(self, slots: Sequence[int]) -> Tensor:
        """The states [n, H] that the stopped tokens of these slots are read out from; the slots are free then."""
        positions = [self._token(slot).position for slot in slots]
        hidden = self._hidden[self._places(slots, positions)]
        for slot in set(slots):
            self._tokens[slot] = None
        return hidden

    def move(self, source: int, target: int) -> None:
        """Makes all that belongs to slot `source` that of slot `target`, but the K/V."""
        self._tokens[target] = self._tokens[source]
        self._left[target] = self._left[source]
        self._tokens[source], self._left[source] = None, {}
        for state in (self._hidden, self._remaining):
            by_slot = state.unflatten(0, (-1, self._kept))
            by_slot[target] = by_slot[source]

    def clear(self, slot: int) -> None:
        """Forgets what the slot's last sequence left."""
        self._left[slot] = {}

    def batches(self, rows: Sequence[T]) -> list[Sequence[T]]:
        """The rows as they are run: all at once, or so many at a time as every batch has."""
        size = self._fixed_rows
        if size is None:
            return [rows]
        parts = [rows[start : start + size] for start in range(0, len(rows), size)]
        return [[*part, *[part[0]] * (size - len(part))] for part in parts]

    def _token(self, slot: int) -> _InFlight:
        token = self._tokens[slot]
        assert token is not None
        return token

    def _places(self, slots: Sequence[int], positions: Sequence[int]) -> Tensor:
        """Where states are kept."""
        places = [slot * self._kept + p % self._kept for slot, p in zip(slots, positions, strict=True)]
        return torch.tensor(places, device=self._model.device)

    def _late_rows(self, slot: int, loop: int) -> list[Row]:
        """The earlier positions of the slot whose next loop this is.

        A token that came as far as this loop has taken along all positions that had run fewer, so that none is left
        further behind; each row sees the K/V of this loop that the rows before it write in the same batch.
        """
        left = self._left[slot]
        late = [Row(slot, position, loop) for position, loops in left.items() if loops == loop]
        for row in late:
            left[row.position] += 1
            if left[row.position] == self._full_depth:
                del left[row.position]
        return late

    def _run(self, rows: Sequence[Row], asks: bool) -> None:
        places = self._places([row.slot for row in rows], [row.position for row in rows])
        positions = torch.tensor([row.position for row in rows], device=self._model.device)
        attend = self._cache.decode(rows)
        x = self._loop(0, self._hidden[places], self._cos[positions], self._sin[positions], attend=attend)
        self._hidden[places] = x
        if asks:
            self._remaining[places] *= torch.sigmoid(-self._model.exit_gate(x))

    def _gate_says_stop(self, slots: Sequence[int], tokens: Sequence[_InFlight]) -> list[bool]:
        """Of tokens that have just run one loop more than they say."""
        loops = [token.loops + 1 for token in tokens]
        if max(loops) < self._rule.min_loops:
            return [False] * len(tokens)
        remaining = self._remaining[self._places(slots, [token.position for token in tokens])]
        says = self._rule.stops(torch.tensor(loops, device=remaining.device), remaining).tolist()
        return [stop and token.asks for stop, token in zip(says, tokens, strict=True)]

    def _leave(self, stopped: dict[int, int]) -> None:
        """What becomes of the K/V of loops that the stopped tokens leave out."""
        early = [
            Row(slot, self._token(slot).position, depth - 1)
            for slot, depth in stopped.items()
            if depth < self._full_depth
        ]
        if self._kv == "deferred_fill":
            for row in early:
                self._left[row.slot][row.position] = row.loop + 1
        elif self._kv == "last_exited":
            self._cache.copy_to_deeper(early)
            self._stats.kv_rows_read += len(early)
            self._stats.kv_rows_written += sum(self._full_depth - 1 - row.loop for row in early)

    def _count(self, rows: Sequence[Row], late: Sequence[Row], asks: bool) -> None:
        batches = self.batches(rows)
        self._stats.loop_runs += len(batches)
        self._stats.gate_runs += len(batches) * asks
        self._stats.recurrent_rows += len(rows)
        self._stats.filled_rows += len(late)
        self._stats.padded_rows += sum(map(len, batches)) - len(rows)
        self._stats.kv_rows_read += sum(row.position + 1 for row in rows)
        self._stats.kv_rows_written += len(rows)
