"""How much of its RDY a connection uses, so that nsqd holds no message back for long (pure).

nsqd buffers what it hands over. It writes the buffer when that is full, when as many messages are in flight as RDY
allows, and when its ticker ticks: `output_buffer_timeout`, 25 ms at the least. A message that uses up RDY is written at
once; on a topic with a few hundred messages a second and a RDY of thousands, each waits for the ticker.

So a connection uses a window of the RDY that it was granted:

- Messages that use up the window double it: a backlog opens all of it within a dozen round trips.
- Silence closes it: when no message came or was answered for PATIENCE_S, RDY is one more than what is in flight. nsqd
  then writes what it holds, or the next message at once. That message opens the window again, half as wide: it was
  wider than what came. Where Redis is slow, and all of the window is in flight, silence makes room for one more, too.

Under load a far nsqd is silent for a round trip, too, and a window that closes then costs another one. So patience has
two round trips more; where it would be longer than the ticker, all that was granted is used. The round trip is that of
the connection's beginning: where it grows later, a backlog comes more slowly until the next connection.

Invariants: what is used is never more than what was granted, and after a silence it leaves room for another message
wherever that does.

Comes from `connection`, which counts what is in flight, notices the silence, and sends the RDY that this decides on.
"""

from __future__ import annotations

import math
import sys

PATIENCE_S = 0.002


class Window:
    def __init__(self, ticker_s: float, round_trip_s: float) -> None:
        """`ticker_s`: after so long nsqd writes what it holds; 0: it holds nothing back."""
        self.used = 0
        """The RDY that nsqd has."""
        self._granted = 0
        self._width = sys.maxsize
        self._width_before_close = 0
        """0: it is open."""
        self.patience_s = math.inf
        """How much silence closes it; infinite where nsqd's ticker is quicker."""
        self._ticker_s = ticker_s
        self.note_round_trip(round_trip_s)

    def note_round_trip(self, round_trip_s: float) -> None:
        """The shortest counts: the others had to wait for a turn here or there."""
        patience_s = PATIENCE_S + 2 * round_trip_s
        if patience_s < self._ticker_s:
            self.patience_s = min(self.patience_s, patience_s)

    def grant(self, count: int) -> None:
        self._granted = count
        self._open()

    def arrived(self, in_flight: int) -> bool:
        """Messages came; they count as in flight. Returns whether `used` is another number now."""
        width = self._width_before_close or self.used
        if in_flight >= width:
            self._width = max(self._width, 2 * width)
        before = self.used
        self._open()
        return self.used != before

    def settle(self, in_flight: int) -> bool:
        """After silence. Returns whether `used` is another number now."""
        before, self.used = self.used, min(self._granted, in_flight + 1)
        if self.used < before:
            self._width_before_close = before
            self._width = before // 2
        return self.used != before

    def _open(self) -> None:
        self._width_before_close = 0
        self.used = min(self._granted, self._width)
