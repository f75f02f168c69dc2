"""A clock for a server, set by a test: a library before libc's (LD_PRELOAD), compiled if there is a C compiler."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static volatile long *ahead_s;

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("SHIFTED_CLOCK");
  int file = path ? open(path, O_RDONLY) : -1;
  void *found = file < 0 ? MAP_FAILED : mmap(0, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
  ahead_s = found == MAP_FAILED ? 0 : found;
}

int gettimeofday(struct timeval *now, void *zone) {
  static int (*libc)(struct timeval *, void *);
  if (!libc) libc = dlsym(RTLD_NEXT, "gettimeofday");
  int result = libc(now, zone);
  if (ahead_s) now->tv_sec += *ahead_s;
  return result;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  static int (*libc)(clockid_t, struct timespec *);
  if (!libc) libc = dlsym(RTLD_NEXT, "clock_gettime");
  int result = libc(clock, now);
  if (ahead_s && clock == CLOCK_REALTIME) now->tv_sec += *ahead_s;
  return result;
}
"""


class ShiftedClock:
    """Of the servers that are started while its `environ` is in force."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("there is no C compiler")
        folder.mkdir(exist_ok=True)
        source, library, self._ahead = folder / "clock.c", folder / "clock.so", folder / "ahead"
        source.write_text(_SOURCE, encoding="utf-8")
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
        self.set_ahead(0)
        self.environ = {"LD_PRELOAD": str(library), "SHIFTED_CLOCK": str(self._ahead)}

    def set_ahead(self, seconds: int) -> None:
        with self._ahead.open("r+b" if self._ahead.exists() else "w+b") as file:
            file.write(seconds.to_bytes(8, "little", signed=True))
