"""How often those who drive NIXL look: it has nothing to wait on, and moves only while it is looked at."""

from typing import Final

POLL_S: Final = 0.0005
"""While something moves. A look costs about a microsecond."""

IDLE_LOOK_S: Final = 0.05
"""While nothing does, so that peers can say hello and goodbye."""
