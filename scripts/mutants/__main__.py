"""The command: `python -m scripts.mutants [SUITE …]`."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from pathlib import Path

from scripts.mutants import backoff, lua
from scripts.mutants.mutant import Mutant, StaleList, check
from scripts.mutants.running import PACKAGE, Interrupted, Outcome, Runner, Verdict

ROOT = Path(__file__).resolve().parents[2]
SUITES: dict[str, Sequence[Mutant]] = {"lua": lua.MUTANTS, "backoff": backoff.MUTANTS}
AT_A_TIME = 2


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="mutants", description="Breaks the package on purpose; the tests are to notice."
    )
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"{', '.join(SUITES)} (default: all)")
    parser.add_argument("--list", action="store_true", help="print the mutants and what each of them breaks")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="only this one; may be repeated")
    options = parser.parse_args()
    if unknown := [name for name in options.suites if name not in SUITES]:
        parser.error(f"there is no suite {unknown[0]!r}; there are {', '.join(SUITES)}")
    mutants = [mutant for name in options.suites or SUITES for mutant in SUITES[name]]
    try:
        check(mutants, ROOT / PACKAGE)
    except StaleList as error:
        print(f"mutants: the list does not fit the package:\n{error}", file=sys.stderr)
        return 2
    if missing := set(options.only) - {mutant.name for mutant in mutants}:
        parser.error(f"there is no mutant {min(missing)!r}")
    mutants = [mutant for mutant in mutants if not options.only or mutant.name in options.only]
    if options.list:
        for mutant in mutants:
            print(f"{mutant.name:{width_of(mutants)}}  {mutant.file:20}  {mutant.rule}")
        return 0
    # What ends this ends its runs: SIGTERM comes from `timeout` and from a CI job.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    return run(mutants)


def run(mutants: Sequence[Mutant]) -> int:
    began_s = time.monotonic()
    verdicts: list[Verdict] = []
    with closing(Runner(ROOT)) as runner, ThreadPoolExecutor(AT_A_TIME) as pool:
        try:
            tests = list(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
            if tests and (failed := pool.submit(runner.baseline, tests).result()):
                print(f"mutants: the tests fail without any mutant:\n{failed}", file=sys.stderr)
                return 2
            for future in as_completed([pool.submit(runner.judge, mutant) for mutant in mutants]):
                verdicts.append(future.result())
                print(row(verdicts[-1], width_of(mutants)), flush=True)
        except (KeyboardInterrupt, Interrupted):
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever is impatient: it takes a moment to end the servers
            runner.end()
            pool.shutdown(cancel_futures=True)
            print("mutants: ended before all were judged", file=sys.stderr)
            return 130
        except BaseException:
            runner.end()
            pool.shutdown(cancel_futures=True)
            raise
    return report(mutants, verdicts, time.monotonic() - began_s)


def width_of(mutants: Sequence[Mutant]) -> int:
    return max((len(mutant.name) for mutant in mutants), default=0)


def row(verdict: Verdict, width: int) -> str:
    return f"{verdict.outcome:16}  {verdict.mutant.name:{width}}  {verdict.took_s:6.1f} s  {verdict.detail}"


def report(mutants: Sequence[Mutant], verdicts: Sequence[Verdict], took_s: float) -> int:
    """The table in the order of the lists, and the exit code."""
    by_name = {verdict.mutant.name: verdict for verdict in verdicts}
    found = Counter(verdict.outcome for verdict in verdicts)
    print(f"\n{'verdict':16}  {'mutant':{width_of(mutants)}}      took  caught by, or why it may live")
    for mutant in mutants:
        verdict = by_name[mutant.name]
        print(row(verdict, width_of(mutants)))
        if verdict.outcome is Outcome.SURVIVED:
            print(f"{'':16}  breaks: {mutant.rule} ({mutant.file}); not caught by {' '.join(mutant.tests)}")
    share = 100 * found[Outcome.CAUGHT] / max(1, len(verdicts))
    counts = ", ".join(f"{found[outcome]} {outcome}" for outcome in Outcome if found[outcome])
    print(f"\n{len(verdicts)} mutants in {took_s:.0f} s: {counts or 'nothing to do'} ({share:.1f} % caught)")
    return 1 if found[Outcome.SURVIVED] or found[Outcome.BROKEN] else 0


if __name__ == "__main__":
    sys.exit(main())
