"""What a router that knows the caches is worth, beside round-robin and least-loaded.

Run: `python -m tests.perf.routing`. Simulated workers first (`simulated_routing` has their parameters):
`throughput_ratio` is the highest rate of requests that `kv` sustains over the highest that `round_robin`
does, a rate being sustained while nine in ten requests get their first token within the same limit; rates go
up by a quarter. `hit_ratio` is taken at the first rate that round-robin fails. `no_sharing_ratio`: of
requests that share nothing, those within the limit, over those of `least_loaded`. Then two real workers under
either policy (`real_sessions`): `real_ttft_ratio` is that of the medians over all turns, first ones too.
"""

import asyncio
import json

import msgspec

from tests.perf import real_sessions, simulated_routing


def main() -> None:
    figures = msgspec.to_builtins(asyncio.run(simulated_routing.measure()))
    figures["real_ttft_ratio"] = real_sessions.measure()
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
