"""How much of a request can be loaded, and when it pays to wait for somebody else's transfer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kvoffload.hits import GroupHit, GroupKeys
from kvoffload.ledger import Ledger
from kvoffload.vllm.disk_plans import DiskPlans
from kvoffload.vllm.groups import ChunkGroup
from kvoffload.vllm.requests import Answer, RequestState, Stamp
from kvoffload.worth import Worth

# An engine that computes and loads nothing in so many steps: whatever steps in flight held is free by then.
STUCK_STEPS = 4


class Lookup:
    """Answers vLLM's question for external hits; also knows which keys are being loaded for whom.

    A waiting request is asked about in every step, so its answer is kept until `generation` moves: on anything that can
    turn a miss into a hit or end a wait.
    """

    def __init__(
        self,
        ledger: Ledger,
        groups: Sequence[ChunkGroup],
        unit_tokens: int,
        deadline_seconds: float,
        worth: Worth,
        disk: DiskPlans | None = None,
    ) -> None:
        self.generation = 0
        self.busy = False  # the GPU had no time left in the last step
        self.joins = True  # False without vLLM's own prefix cache: what is loaded for another request is no hit there
        self.whole_prompts = False  # whether a hit may hold the last token too, which is then computed over it
        self._ledger = ledger
        self._groups = groups
        self._unit_tokens = unit_tokens
        self._deadline_seconds = deadline_seconds
        self._worth = worth
        self._counters: Counter[str] = worth.counters
        self._disk = disk
        self._loading: list[dict[bytes, str]] = [{} for _ in groups]  # per group: key -> the request it is loaded for
        self._parked: set[str] = set()  # requests whose load is done; they hold blocks and wait to be admitted
        self._making_way = False
        self._idle_steps = 0

    def stepped(self, moves: bool) -> None:
        """A step is planned. moves: it computes something, or a load is under way."""
        self._idle_steps = 0 if moves or self._parked else self._idle_steps + 1

    def load_begins(self, state: RequestState, group: ChunkGroup, keys: Sequence[bytes]) -> None:
        request_id = state.request.request_id
        for key in keys:
            self._loading[group.index][key] = request_id
            state.loading.append((group.index, key))

    def load_done(self, state: RequestState) -> None:
        """All ranks have reported the request's load."""
        self._parked.add(state.request.request_id)

    def load_ended(self, state: RequestState) -> None:
        """The request was admitted (only now are its blocks in vLLM's own cache), looked up again, or is gone."""
        if not state.loading:
            return
        self._parked.discard(state.request.request_id)
        self._making_way = self._making_way and bool(self._parked)
        for group, key in state.loading:
            if self._loading[group].get(key) == state.request.request_id:
                del self._loading[group][key]
        state.loading = []
        self.generation += 1

    def answer(self, state: RequestState, now: float) -> Answer:
        patient = state.waiting_since is None or now - state.waiting_since < self._deadline_seconds
        if patient and self._make_way(state):
            if state.waiting_since is None:
                state.waiting_since = now
            return None, False
        stamp = (state.local_tokens, state.request.num_tokens, self.generation)
        if self._idle_steps >= STUCK_STEPS and state.offered and state.answer[0]:
            self._compute(state, stamp)
        if state.stamp == stamp and (patient or state.answer[0] is not None):
            return state.answer
        state.stamp, state.answer = stamp, self._look(state, patient)
        state.offered = state.answer[0] is not None
        if not state.offered and state.waiting_since is None:
            state.waiting_since = now
        return state.answer

    def _compute(self, state: RequestState, stamp: Stamp) -> None:
        """Nothing runs, and still it is given no blocks for what it was offered: it is computed.

        vLLM (0.26 and 0.32 do) goes on reserving blocks for a request whose load failed: no load may ever fit again.
        """
        state.release_holds()
        state.stamp, state.answer = stamp, (0, False)
        self._counters["computed_instead"] += 1

    def _make_way(self, state: RequestState) -> bool:
        """Lets requests pass that hold blocks already, when one before them in the queue was found not to fit.

        vLLM before 0.32 stops its scan there; with nothing running, nothing would ever be scheduled again.
        """
        if self._parked and state.offered and not self._making_way:
            self._making_way = True
            self._counters["made_way"] += 1
        return self._making_way

    def _look(self, state: RequestState, patient: bool) -> Answer:
        """Hits end on a multiple of every group's chunk, and leave at least one token to compute."""
        request, local = state.request, state.local_tokens
        state.release_holds()
        most = self._most_tokens(state)
        if most <= local:
            return 0, False
        groups = [group.keys_between(request.block_hashes, local, most) for group in self._groups]
        hold, hit = self._ledger.hold_groups(groups, local)
        state.holds.append(hold)
        if patient and (self._is_loading(state, groups) or self._is_storing(state, groups, hit.host_tokens)):
            return None, False
        worth_tokens = self._worth_tokens(state, hit)
        if patient and worth_tokens > hit.host_tokens and self._is_on_disk(state, groups, hit):
            return None, False
        if min(worth_tokens, hit.host_tokens) <= local:
            state.release_holds()
            return 0, False
        return min(hit.host_tokens, request.num_tokens - 1) - local, True

    def _most_tokens(self, state: RequestState) -> int:
        """Where a hit ends at most. A prompt's last chunk is loaded with others, but is not worth a load alone."""
        request, unit = state.request, self._unit_tokens
        most = min(request.num_tokens, len(request.block_hashes) * self._groups[0].tokens_per_hash)
        most -= most % unit
        if most == request.num_tokens and not (self.whole_prompts and most - unit > state.local_tokens):
            most -= unit
        return most

    def _worth_tokens(self, state: RequestState, hit: GroupHit) -> int:
        """Up to where the hit is worth loading. Once it was, it stays so until the request runs: it may have waited."""
        if hit.tokens <= max(state.accepted_tokens, state.local_tokens):
            return hit.tokens
        # One that was offered a hit and is asked about again waits for blocks.
        busy = self.busy or state.offered
        best = self._worth.best_end(state.local_tokens, hit.host_tokens, hit.tokens, busy=busy)
        if best < hit.tokens:
            tried = state.verdict[3] if state.verdict else self._worth.try_anyway()
            state.verdict = (best, hit.host_tokens, hit.tokens, tried)
            return hit.tokens if tried else best
        state.accepted_tokens, state.verdict = best, None
        return best

    def count_verdict(self, state: RequestState) -> None:
        """Blocks were given out: what was refused is computed."""
        if state.verdict is not None:
            best, host_tokens, tokens, tried = state.verdict
            self._worth.count(best, host_tokens, tokens, tried=tried)

    def _is_loading(self, state: RequestState, groups: Sequence[GroupKeys]) -> bool:
        """A load of the same keys for somebody else soon is a local hit."""
        loading = [(self._loading[group.group], group.keys) for group in groups]
        if not self.joins or not any(others and not others.keys().isdisjoint(keys) for others, keys in loading):
            return False
        if not self._windows_are_loading(state.local_tokens, groups):
            return False
        self._counters["joins"] += state.waiting_since is None
        return True

    def _windows_are_loading(self, local: int, groups: Sequence[GroupKeys]) -> bool:
        """Of a sliding window only the end is loaded, so that hits are where others end, and not before."""
        windows = [group for group in groups if group.window_tokens is not None]
        per_chunk = [group.tokens_per_chunk for group in windows]
        ends = [(local // n + len(group.keys)) * n for group, n in zip(windows, per_chunk, strict=True)]
        most = min(ends, default=0)
        return not windows or any(
            all(key in self._loading[group.group] for group in windows for key in group.needed(local, end))
            for end in range(most - most % self._unit_tokens, local, -self._unit_tokens)
        )

    def _is_on_disk(self, state: RequestState, groups: Sequence[GroupKeys], hit: GroupHit) -> bool:
        """What follows on disk is brought to host memory first; nothing is ever loaded from disk."""
        return self._disk is not None and hit.tokens > hit.host_tokens and self._disk.bring(state, groups, hit)

    def _is_storing(self, state: RequestState, groups: Sequence[GroupKeys], hit_tokens: int) -> bool:
        """A preempted request's own stores soon end and make the hit longer. For a new request a key that is being
        stored is a miss.
        """
        if state.request.num_preemptions == 0:
            return False
        end = hit_tokens - hit_tokens % self._unit_tokens + self._unit_tokens
        states = set()
        for group in groups:
            keys = group.beyond(state.local_tokens, hit_tokens, end)
            states.update(self._ledger.states(keys, group.group))
        return "filling" in states and "absent" not in states
