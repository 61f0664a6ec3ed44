"""The watch over the event loop: who asks first finds the lateness, and it is found once."""

import asyncio
import time

from services.loop_watch import TICK_S, watch_loop


def test_a_loop_in_time_stays_in_its_term() -> None:
    async def body() -> None:
        with watch_loop(late_after_s=5) as watch:
            await asyncio.sleep(2 * TICK_S)  # the ticks of this time are what the test is about
            assert watch.check() == 0

    asyncio.run(body())


def test_a_lateness_begins_one_term_whoever_asks_first() -> None:
    async def body() -> None:
        lates: list[str] = []
        with watch_loop(late_after_s=0.1) as watch:
            forget = watch.add_listener(lambda: lates.append("late"))
            time.sleep(TICK_S + 0.2)  # noqa: ASYNC251 (this is the lateness)
            assert watch.check() == 1
            assert watch.check() == 1
            time.sleep(TICK_S + 0.2)  # noqa: ASYNC251
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert lates == ["late", "late"], "the tick found the second"
            assert watch.term == 2
            forget()
            time.sleep(TICK_S + 0.2)  # noqa: ASYNC251
            assert watch.check() == 3
            assert len(lates) == 2

    asyncio.run(body())
