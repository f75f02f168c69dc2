"""A command whose process ends with this one, however this one ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

# Becomes the command, after it asked the kernel (PR_SET_PDEATHSIG) to be killed when its parent ends. The parent may
# have ended before that.
_BECOME = """
import ctypes, os, signal, sys
parent, *command = sys.argv[1:]
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() == int(parent):
    os.execv(command[0], command)
"""


def ends_with_this_process(command: Sequence[str]) -> list[str]:
    """The same command for `create_subprocess_exec`. Where the kernel can (Linux), it is killed when the thread that
    started it ends; elsewhere a SIGKILL of this process leaves it behind."""
    return [sys.executable, "-I", "-S", "-c", _BECOME, str(os.getpid()), *command]
