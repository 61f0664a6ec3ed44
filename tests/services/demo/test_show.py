"""What the demonstration shows of one look, and which move was the last."""

import io

from rich.console import Console

from proto.codec import encode
from proto.roles import Order, Role
from services.demo.scene import LastMove, Moves, Sight
from services.demo.show import as_line, as_view
from services.demo.swing import LIMITS, PROMPTS
from services.directory import Changed, Entry, Listed, Removed
from services.planner.traffic_meter import Traffic
from services.status.rows import WorkerRow

ORDER = Order("sim-3", Role.PREFILL, 2, placed_by="planner", reason="too little headroom")
KEY = "/kvmesh/default/orders/sim-3"


def _row(number: int, role: Role, epoch: int = 1) -> WorkerRow:
    return WorkerRow(f"sim-{number}", "text", role, "ready", epoch, "host", True, num_running=3)


ROWS = [_row(number, Role.PREFILL if number < 6 else Role.DECODE) for number in range(8)]
SIGHT = Sight(
    PROMPTS,
    ROWS,
    Traffic(request_rate=9.7, ttft_s=1.25, itl_s=0.125, num_waiting=4),
    [4] * 58 + [5, 6],
    LastMove(ORDER, 2.0, "done"),
)


def _render(sight: Sight) -> list[str]:
    console = Console(file=io.StringIO(), width=80, force_terminal=False)
    console.print(as_view(sight, LIMITS))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_a_look_fits_a_small_terminal() -> None:
    lines = _render(SIGHT)
    assert len(lines) <= 24
    text = "\n".join(lines)
    assert "10 in flight   TTFT p90 1.2 s of 6.0 s   ITL p90 125 ms of 85 ms" in text
    assert "sim-3 to prefill, 2 s ago, done: too little headroom" in text
    assert all(f"sim-{number}" in text for number in range(8))


def test_a_look_is_a_line_where_there_is_no_terminal() -> None:
    assert as_line(SIGHT, LIMITS) == (
        "load prompts; prefill 6, decode 2; 10 in flight; TTFT p90 1.2 s of 6.0 s, ITL p90 125 ms of 85 ms; "
        "sim-3 to prefill, 2 s ago, done: too little headroom"
    )


def test_the_last_move_is_the_newest_order_until_its_end() -> None:
    moves = Moves()
    moves.apply(Listed([Entry(KEY, encode(ORDER), 1)]))
    assert moves.last(ROWS) is None
    moves.apply(Changed(Entry(KEY, encode(ORDER), 2)))
    last = moves.last(ROWS)
    assert last is not None
    assert (last.order, last.state) == (ORDER, "under way")
    done = moves.last([_row(3, Role.PREFILL, epoch=2)])
    assert done is not None
    assert done.state == "done"
    moves.apply(Removed(KEY))
    gone = moves.last(ROWS)
    assert gone is not None
    assert gone.state == "given up"
