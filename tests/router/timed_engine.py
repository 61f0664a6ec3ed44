"""An engine behind a scripted worker that takes time: seats, one prefill at a time, steps, a cache."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable

from proto.events import BlocksRemoved, BlocksStored, KvEvent, unpack_hashes
from proto.requests import RoutedRequest
from proto.tokens import count_tokens
from tests.router.scripted_worker import BLOCK, ScriptedWorker, hashes_of


class TimedEngine:
    """Belongs to one event loop. Units: `prefill_rate` tokens a second, `step_s` seconds, both before
    `slowness`; `first_s` of each request on the loop's clock."""

    def __init__(self, *, seats: int, prefill_rate: float, step_s: float, cache_blocks: int = 1000) -> None:
        self.slowness = 1.0
        self.first_s: dict[str, float] = {}
        self.num_taken = 0
        self.hit_tokens = 0
        self.prompt_tokens = 0
        self.on_end: Callable[[str], None] = lambda _: None
        self._seats = seats
        self._prefill_rate = prefill_rate
        self._step_s = step_s
        self._cache_blocks = cache_blocks
        self._cache: OrderedDict[bytes, None] = OrderedDict()
        self._waiting: deque[tuple[RoutedRequest, int]] = deque()
        self._num_running = 0
        self._prefill_until_s = 0.0
        self._to_prefill = 0

    def drive(self, worker: ScriptedWorker) -> None:
        """`worker` takes what comes for this engine, and reports what goes on here."""
        self._worker = worker
        worker.max_sequences = self._seats
        worker.on_taken = self.take
        self._report()

    def take(self, routed: RoutedRequest) -> None:
        self.num_taken += 1
        expected = count_tokens(routed.request.prompt) - self._hit_tokens(routed.request.prompt)
        self._to_prefill += expected
        self._waiting.append((routed, expected))
        self._fill_seats()

    def _fill_seats(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting and self._num_running < self._seats:
            routed, expected = self._waiting.popleft()
            self._num_running += 1
            num_tokens = count_tokens(routed.request.prompt)
            hit_tokens = self._hit_tokens(routed.request.prompt)
            self.hit_tokens += hit_tokens
            self.prompt_tokens += num_tokens
            begin_s = max(loop.time(), self._prefill_until_s)
            prefill_s = (num_tokens - hit_tokens) / self._prefill_rate * self.slowness
            self._prefill_until_s = begin_s + prefill_s
            loop.call_at(self._prefill_until_s, self._end_prefill, routed, expected)
        self._report()

    def _hit_tokens(self, prompt: bytes) -> int:
        num_tokens, num_hit = count_tokens(prompt), 0
        for key in unpack_hashes(hashes_of(prompt)):
            if key not in self._cache:
                break
            self._cache.move_to_end(key)
            num_hit += 1
        return min(num_hit * BLOCK, num_tokens - 1)

    def _end_prefill(self, routed: RoutedRequest, expected: int) -> None:
        loop, request = asyncio.get_running_loop(), routed.request
        self.first_s[request.request] = loop.time()
        self._to_prefill -= expected
        self._worker.tell(self._store(hashes_of(request.prompt)))
        answer_s = request.stopping.max_tokens * self._step_s * self.slowness
        loop.call_later(answer_s, self._end, request.request)
        self._report()

    def _store(self, hashes: bytes) -> list[KvEvent]:
        fresh = [key for key in unpack_hashes(hashes) if key not in self._cache]
        self._cache.update(dict.fromkeys(fresh))
        num_over = max(0, len(self._cache) - self._cache_blocks)
        evicted = b"".join(self._cache.popitem(last=False)[0] for _ in range(num_over))
        events: list[KvEvent] = [BlocksStored(b"".join(fresh))] if fresh else []
        return events + ([BlocksRemoved(evicted)] if evicted else [])

    def _end(self, request: str) -> None:
        self._num_running -= 1
        self.on_end(request)
        self._fill_seats()

    def _report(self) -> None:
        self._worker.load = {
            "num_running": self._num_running,
            "num_waiting": len(self._waiting),
            "waiting_tokens": self._to_prefill,
            "prefill_rate": self._prefill_rate / self.slowness,
            "decode_step_s": self._step_s * self.slowness,
            "hit_tokens": self.hit_tokens,
            "prompt_tokens": self.prompt_tokens,
        }
