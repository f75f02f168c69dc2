"""What every measurement does with its lanes: choose them, run them in turn, say on what machine."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Protocol, TypeVar

from bench.servers import BenchError, find_binary


class Keyed(Protocol):
    @property
    def key(self) -> str: ...


LaneT = TypeVar("LaneT", bound=Keyed)
RoundT = TypeVar("RoundT")


def chosen(known: Sequence[LaneT], wanted: str) -> list[LaneT]:
    """`wanted`: keys with commas between them; "" is all."""
    keys = [key.strip() for key in wanted.split(",")] if wanted else [lane.key for lane in known]
    if unknown := [key for key in keys if key not in {lane.key for lane in known}]:
        raise BenchError(f"unknown lane {unknown[0]!r}; there are {', '.join(lane.key for lane in known)}")
    return [lane for lane in known if lane.key in keys]


def interleaved(
    keys: Sequence[str], rounds: int, run: Mapping[str, Callable[[], RoundT]], summary: Callable[[RoundT], str]
) -> dict[str, list[RoundT]]:
    """a, b, c, a, b, c …, so that a slow minute of the machine is shared."""
    done: dict[str, list[RoundT]] = {key: [] for key in keys}
    for number in range(1, rounds + 1):
        for key in keys:
            began_s = time.monotonic()
            result = run[key]()
            done[key].append(result)
            took_s = time.monotonic() - began_s
            print(f"round {number}/{rounds}  {key:<8}{summary(result)}   {took_s:.0f} s in all", flush=True)
    return done


def machine_facts(rounds: int, servers: Iterable[str], packages: Iterable[str]) -> dict[str, str]:
    """`rounds`: 0 if there are none."""
    in_rounds = f"{rounds} rounds, " if rounds else ""
    processor = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text("utf-8"), re.MULTILINE)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return {
        "measured": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {in_rounds}load before {os.getloadavg()[0]:.2f}",
        "machine": f"{processor[1] if processor else platform.machine()}, {os.cpu_count()} CPUs, {memory:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "servers": "; ".join(_first_line([find_binary(name), "--version"]) for name in servers),
        "Python": platform.python_version(),
        "packages": ", ".join(f"{name} {version(name)}" for name in packages),
    }


def _first_line(command: list[str]) -> str:
    answer = subprocess.run(command, check=False, capture_output=True, text=True).stdout.splitlines()
    return answer[0].strip() if answer else "unknown"
