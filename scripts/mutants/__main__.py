"""The command: `python -m scripts.mutants [SUITE …]`."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import closing
from pathlib import Path

from scripts.mutants import generated, known_defects
from scripts.mutants.job import PACKAGE
from scripts.mutants.mutant import Mutant, StaleList, check
from scripts.mutants.running import Interrupted, Outcome, Reach, Runner, Verdict

ROOT = Path(__file__).resolve().parents[2]
LISTED = "known"
SUITES = (LISTED, *generated.suites(ROOT))
AT_A_TIME = 2
LEAST_CAUGHT = 0.9
"""Of what is generated for a module. The rest has to be argued."""

Suites = Mapping[str, Sequence[Mutant]]


def main() -> int:
    options = _options()
    try:
        suites = _chosen(options)
    except StaleList as error:
        print(f"mutants: the list does not fit the package:\n{error}", file=sys.stderr)
        return 2
    except KeyError as error:
        print(f"mutants: {error.args[0]}", file=sys.stderr)
        return 2
    mutants = [mutant for each in suites.values() for mutant in each]
    if options.list:
        for mutant in mutants:
            print(f"{mutant.name:{width_of(mutants)}}  {mutant.file:20}  {mutant.rule}")
        return 0
    # What ends this ends its runs: SIGTERM comes from `timeout` and from a CI job. A shell that starts this in the
    # background has it ignore SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    return run(suites)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="mutants", description="Breaks the package on purpose; the tests are to notice."
    )
    parser.add_argument(
        "suites", nargs="*", metavar="SUITE", help=f"{', '.join(SUITES)}; `lua` stands for all lua:… (default: all)"
    )
    parser.add_argument("--list", action="store_true", help="print the mutants and what each of them breaks")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="only this one; may be repeated")
    parser.add_argument("--sample", type=int, metavar="N", help="so many of each generated suite, chosen by --seed")
    parser.add_argument("--seed", type=int, default=0, metavar="SEED", help="of --sample (default: 0)")
    return parser.parse_args()


def _chosen(options: argparse.Namespace) -> Suites:
    """Those of the suites that are asked for, each fitting the package."""
    names: list[str] = []
    for asked in options.suites or SUITES:
        found = [name for name in SUITES if name == asked or name.startswith(f"{asked}:")]
        if not found:
            raise KeyError(f"there is no suite {asked!r}; there are {', '.join(SUITES)}")
        names += (name for name in found if name not in names)
    chosen: Suites = {
        name: known_defects.MUTANTS if name == LISTED else generated.mutants_of(name, ROOT) for name in names
    }
    check((mutant for mutants in chosen.values() for mutant in mutants), ROOT / PACKAGE)
    if missing := set(options.only) - {mutant.name for mutants in chosen.values() for mutant in mutants}:
        raise KeyError(f"there is no mutant {min(missing)!r}")
    if options.only:
        chosen = {name: [each for each in mutants if each.name in options.only] for name, mutants in chosen.items()}
    if options.sample is not None:
        chosen = {
            name: mutants if name == LISTED else generated.sampled(mutants, options.sample, options.seed)
            for name, mutants in chosen.items()
        }
    return {name: mutants for name, mutants in chosen.items() if mutants}


def run(suites: Suites) -> int:
    began_s = time.monotonic()
    verdicts: dict[str, Verdict] = {}
    mutants = [mutant for each in suites.values() for mutant in each]
    with closing(Runner(ROOT)) as runner, ThreadPoolExecutor(AT_A_TIME) as pool:
        try:
            reaches, failed = _as_it_is(runner, pool, suites)
            if failed:
                print(f"mutants: the tests fail without any mutant:\n{failed}", file=sys.stderr)
                return 2
            judged = [
                pool.submit(runner.judge, mutant, reaches.get(name)) for name, each in suites.items() for mutant in each
            ]
            for future in as_completed(judged):
                verdict = future.result()
                verdicts[verdict.mutant.name] = verdict
                print(row(verdict, width_of(mutants)), flush=True)
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
    return report(suites, verdicts, time.monotonic() - began_s)


def _as_it_is(runner: Runner, pool: ThreadPoolExecutor, suites: Suites) -> tuple[dict[str, Reach], str]:
    """What the tests of each generated suite of Python reach, or what fails without any mutant."""
    watched = {name: mutants for name, mutants in suites.items() if mutants[0].lines is not None}
    others = [mutant for name, mutants in suites.items() if name not in watched for mutant in mutants]
    tests = list(dict.fromkeys(test for mutant in others for test in mutant.tests))
    baseline = pool.submit(runner.baseline, tests) if tests else None
    under_way: dict[str, Future[Reach | str]] = {
        name: pool.submit(runner.reach, mutants[0].file, mutants[0].tests) for name, mutants in watched.items()
    }
    failed = baseline.result() if baseline else ""
    reaches: dict[str, Reach] = {}
    for name, future in under_way.items():
        reach = future.result()
        if isinstance(reach, str):
            failed += reach
        else:
            reaches[name] = reach
    return reaches, failed


def width_of(mutants: Sequence[Mutant]) -> int:
    return max((len(mutant.name) for mutant in mutants), default=0)


def row(verdict: Verdict, width: int) -> str:
    return f"{verdict.outcome:16}  {verdict.mutant.name:{width}}  {verdict.took_s:6.1f} s  {verdict.detail}"


def report(suites: Suites, verdicts: Mapping[str, Verdict], took_s: float) -> int:
    """A table for each suite, in its order (of what is generated only the survivors), and the exit code."""
    is_well = True
    for name, mutants in suites.items():
        width = width_of(mutants)
        print(f"\n{'verdict':16}  {'mutant':{width}}      took  caught by, or why it may live")
        for mutant in mutants:
            verdict = verdicts[mutant.name]
            has_lived = verdict.outcome not in {Outcome.CAUGHT, Outcome.NOT_LOADED}
            if name == LISTED or has_lived:
                print(row(verdict, width))
            if verdict.outcome is Outcome.SURVIVED:
                print(f"{'':16}  breaks: {mutant.rule} ({mutant.file}); not caught by {' '.join(mutant.tests)}")
        is_well &= _summary(name, [verdicts[mutant.name] for mutant in mutants])
    print(f"\n{len(verdicts)} mutants in {took_s:.0f} s")
    return 0 if is_well else 1


def _summary(name: str, verdicts: Sequence[Verdict]) -> bool:
    found = Counter(verdict.outcome for verdict in verdicts)
    counts = ", ".join(f"{found[outcome]} {outcome}" for outcome in Outcome if found[outcome])
    loaded = len(verdicts) - found[Outcome.NOT_LOADED]
    share = found[Outcome.CAUGHT] / max(1, loaded)
    print(f"{name}: {len(verdicts)} mutants: {counts} ({100 * share:.1f} % caught)")
    is_enough = name == LISTED or share >= LEAST_CAUGHT
    return is_enough and not found[Outcome.SURVIVED] and not found[Outcome.BROKEN]


if __name__ == "__main__":
    sys.exit(main())
