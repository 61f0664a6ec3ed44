"""What disaggregation pays while long prompts arrive and others stream, beside chunked prefill alone.

Run: `python -m tests.perf.disagg`. First a real engine on two cores (`disagg_real`), then eight simulated
workers at the shape of a large model (`disagg_simulated`); each says there what its load and its limits are.
Ratios have the mesh with prefill workers on top. Chunked prefill has three chunk sizes, and for each figure
the best of them counts. `itl_p99_vs_undisturbed`: running streams with long prompts over the same without;
`itl_p99_local_vs_undisturbed`: the same with chunked prefill.

Where it loses is measured too: `itl_p50_ratio_without_prompts` (real) where there is nothing to prefill, and
`goodput_ratio_simulated_loose_itl` where readers bear pauses.
"""

import asyncio
import json

from tests.perf import disagg_real, disagg_simulated


def main() -> None:
    found = asyncio.run(disagg_real.measure()) | asyncio.run(disagg_simulated.measure())
    print(json.dumps({name: round(value, 4) for name, value in found.items()}))


if __name__ == "__main__":
    main()
