"""Mutants of the controller and of the RDY planner, and of the place where the consumer applies what they decide."""

from __future__ import annotations

from scripts.mutants.mutant import Mutant

CONTROLLER = (
    "tests/base/test_backoff.py",
    "tests/base/test_backoff_table.py",
    "tests/base/test_backoff_machine.py",
    "tests/intake/test_fleet_machine.py",
)
CURVE = ("tests/base/test_curve.py", "tests/base/test_backoff_machine.py")
PLANNER = ("tests/intake/test_rdy.py", "tests/intake/test_rdy_machine.py", "tests/intake/test_fleet_machine.py")
CONSUMER = ("tests/intake/test_rdy_sequences.py",)


def of(file: str, tests: tuple[str, ...], *mutants: tuple[str, str, str, str]) -> tuple[Mutant, ...]:
    """What is wrong, the rule, the text, what stands there instead."""
    return tuple(
        Mutant(
            name=f"{file.removesuffix('.py')}: {name}", file=file, old=old, new=new, rule=rule, tests=tests
        )
        for name, rule, old, new in mutants
    )  # fmt: skip


TABLE = of(
    "backoff.py",
    CONTROLLER,
    (
        "a failure while it flows is overlooked",
        "a failure backs off",
        "State.FLOWING: {\n        Event.FAILURE: Transition(State.BACKOFF, Level.FIRST, Reason.FAILED),",
        "State.FLOWING: {\n        Event.FAILURE: STAY,",
    ),
    (
        "a failure in the ramp is overlooked",
        "a failure in the ramp backs off at level 1",
        "new_epoch=False),\n        Event.FAILURE: Transition(State.BACKOFF, Level.FIRST, Reason.FAILED),",
        "new_epoch=False),\n        Event.FAILURE: STAY,",
    ),
    (
        "a backoff ends in full flow",
        "after a backoff one message is tried",
        "Event.TIMER: Transition(State.PROBING, Level.SAME, Reason.BACKOFF_OVER)",
        "Event.TIMER: Transition(State.FLOWING, Level.NONE, Reason.BACKOFF_OVER)",
    ),
    (
        "a probe's success skips the levels",
        "a success of the probe lowers the level and backs off again",
        "Event.SUCCESS: Transition(State.BACKOFF, Level.DOWN, Reason.PROBE_SUCCEEDED)",
        "Event.SUCCESS: Transition(State.RAMPING, Level.NONE, Reason.RECOVERED)",
    ),
    (
        "a probe's failure keeps the level",
        "a failure of the probe raises the level",
        "Event.FAILURE: Transition(State.BACKOFF, Level.UP, Reason.PROBE_FAILED)",
        "Event.FAILURE: Transition(State.BACKOFF, Level.SAME, Reason.PROBE_FAILED)",
    ),
    (
        "a lost probe holds for ever",
        "a probe without a verdict is followed by another",
        "Event.VOID: Transition(State.PROBING, Level.SAME, Reason.PROBE_LOST)",
        "Event.VOID: STAY",
    ),
    (
        "a lost probe counts as failed",
        "a lost probe leaves the level",
        "Event.VOID: Transition(State.PROBING, Level.SAME, Reason.PROBE_LOST)",
        "Event.VOID: Transition(State.BACKOFF, Level.UP, Reason.PROBE_FAILED)",
    ),
    (
        "a probe that nothing answers holds for ever",
        "a probe without a message, or without an answer in time, is followed by another",
        "Event.TIMER: Transition(State.PROBING, Level.SAME, Reason.PROBE_LOST)",
        "Event.TIMER: STAY",
    ),
    (
        "a lost probe's late result counts",
        "every decision but a step of the ramp begins an epoch",
        "Event.VOID: Transition(State.PROBING, Level.SAME, Reason.PROBE_LOST)",
        "Event.VOID: Transition(State.PROBING, Level.SAME, Reason.PROBE_LOST, new_epoch=False)",
    ),
    (
        "what the ramp began is forgotten at each step",
        "results of the whole ramp speak for the store",
        "Event.STEP: Transition(State.RAMPING, Level.NONE, Reason.RAMPED, new_epoch=False)",
        "Event.STEP: Transition(State.RAMPING, Level.NONE, Reason.RAMPED)",
    ),
    (
        "pausing stops what is paused",
        "paused accepts every event",
        "Event.STALE, Event.ANSWERED, Event.PAUSE), STAY",
        "Event.STALE, Event.ANSWERED), STAY",
    ),
    (
        "resume begins from nothing",
        "resume goes back to the state before",
        "Event.RESUME: Transition(None, Level.SAME, Reason.RESUMED)",
        "Event.RESUME: Transition(State.FLOWING, Level.NONE, Reason.RESUMED)",
    ),
    (
        "in a backoff results count",
        "what the table does not know raises",
        "    State.BACKOFF: {\n",
        "    State.BACKOFF: {\n        Event.SUCCESS: STAY,\n",
    ),
)

FACTS = of(
    "backoff.py",
    CONTROLLER,
    (
        "successes of before the backoff count",
        "only results of the present epoch count",
        "    def succeeded(self, epoch: int, now_s: float, count: int = 1) -> bool:\n"
        "        if epoch != self.decision.epoch:",
        "    def succeeded(self, epoch: int, now_s: float, count: int = 1) -> bool:\n        if False:",
    ),
    (
        "fifty failures are fifty levels",
        "one change a backoff",
        "            return False\n        if epoch != self.decision.epoch:\n            return self._stale(now_s)\n"
        "        return self._take(Event.FAILURE, now_s)",
        "            return False\n        if epoch != self.decision.epoch:\n"
        "            level = min(self.decision.level + 1, self._curve.level_cap)\n"
        "            self.decision = self.decision._replace(level=level)\n            return self._stale(now_s)\n"
        "        return self._take(Event.FAILURE, now_s)",
    ),
    (
        "what was lost before the backoff counts",
        "only results of the present epoch count",
        'another one follows."""\n        if epoch != self.decision.epoch:',
        'another one follows."""\n        if False:',
    ),
    (
        "any message begins the probe",
        "a message of an earlier epoch is not the probe",
        "        if epoch == self.decision.epoch:\n            self._take(Event.BEGAN, now_s)",
        "        if True:\n            self._take(Event.BEGAN, now_s)",
    ),
    (
        "a probe has no time",
        "a probe that began has until its message times out",
        "                self.decision = self.decision._replace(wake_at_s=until_s)",
        "                pass",
    ),
    (
        "every timer resumes",
        "an early or stale timer is no event",
        "if wake_at_s is None or now_s < wake_at_s:",
        "if wake_at_s is None:",
    ),
    (
        "a maximum of 0 backs off",
        "max_duration = 0 turns it off",
        "if not self._curve.max_duration_s:",
        "if False:",
    ),
    (
        "what is ignored is not counted",
        "ignored results are counted",
        "        self.ignored += 1\n",
        "",
    ),
    (
        "an unknown event is passed over",
        "an event that the table does not know raises",
        '            raise IllegalEvent(f"{event} means nothing while {now.state}")',
        "            return False",
    ),
    (
        "full speed at once",
        "after the last success it ramps",
        "self._first_limit = 1 if slow_start else max_in_flight",
        "self._first_limit = max_in_flight",
    ),
    (
        "the ramp doubles at each success",
        "a step takes as many successes as the limit",
        "if self._successes >= now.limit:",
        "if self._successes:",
    ),
    (
        "the ramp counts on from step to step",
        "each step counts its own successes",
        "        self._successes = 0\n        epoch =",
        "        epoch =",
    ),
    (
        "the ramp ends above max_in_flight",
        "the limit is never above max_in_flight",
        "2 * self.decision.limit < self._max_in_flight else",
        "self.decision.limit < self._max_in_flight else",
    ),
    (
        "the ramp needs traffic",
        "a step is taken after RAMP_STEP_S without a failure",
        "return now_s + RAMP_STEP_S if to is State.RAMPING else None",
        "return None",
    ),
    (
        "the level passes its cap",
        "the level is capped where the curve reaches the maximum",
        "return min(level + 1, self._curve.level_cap)",
        "return level + 1",
    ),
    (
        "two messages are the probe",
        "a probe is one message",
        "State.PROBING: 1}.get(to, 0)",
        "State.PROBING: 2}.get(to, 0)",
    ),
    (
        "a backoff lets one through",
        "in a backoff nothing may be in flight",
        "State.PROBING: 1}.get(to, 0)",
        "State.PROBING: 1}.get(to, 1)",
    ),
    (
        "resume waits anew",
        "a backoff that ended while paused is over",
        "            wake_at_s = before.wake_at_s\n        else:",
        "            wake_at_s = self._wake_at_s(before.state, before.level, now_s)\n        else:",
    ),
    (
        "resume brings back the old epoch",
        "what was under way before the operator's pause does not count after it",
        "before._replace(epoch=self.decision.epoch + 1,",
        "before._replace(epoch=before.epoch,",
    ),
    (
        "the bound forgets the answers",
        "recovery takes no longer than longest_recovery_s",
        "curve.longest_s(level)) + answer_s",
        "curve.longest_s(level))",
    ),
    (
        "the bound forgets the probe that is out",
        "recovery takes no longer than longest_recovery_s",
        "    total_s = answer_s\n",
        "    total_s = 0.0\n",
    ),
)

WAITS = of(
    "backoff.py",
    CURVE,
    (
        "backoffs of no length",
        "no backoff is shorter than 100 ms",
        "return max(SHORTEST_WAIT_S, shortest_s), max(SHORTEST_WAIT_S, longest_s)",
        "return shortest_s, longest_s",
    ),
    (
        "no jitter at the cap",
        "jitter survives the cap",
        "        longest_s = self.longest_s(level)\n        if self.strategy",
        "        longest_s = self.longest_s(level)\n        if longest_s == self.max_duration_s:\n"
        "            return longest_s, longest_s\n        if self.strategy",
    ),
    ("equal is full", "equal jitter draws from half", '"equal": longest_s / 2', '"equal": 0.0'),
    ("the curve is a line", "base x 2^level", "float(1 << min(level, 63))", "float(2 * level)"),
    ("one level late", "level 1 waits around 2 x base", "float(1 << min(level, 63))", "float(1 << min(level - 1, 63))"),
    (
        "beyond the maximum",
        "no wait is above max_duration",
        "return min(self.base_s * float(1 << min(level, 63)), self.max_duration_s)",
        "return self.base_s * float(1 << min(level, 63))",
    ),
    (
        "decorrelated from nothing",
        "decorrelated waits are never below base",
        "            shortest_s = self.base_s",
        "            shortest_s = 0.0",
    ),
    (
        "doubled, not tripled",
        "decorrelated waits grow by 3^n",
        "base, times = 3 * base, times - 1",
        "base, times = 2 * base, times - 1",
    ),
    (
        "tripled beyond the cap",
        "decorrelated waits are never above the maximum",
        "    return min(base, cap)",
        "    return base",
    ),
    (
        "a cap of its own",
        "the cap is the first level that waits the maximum",
        "    level = 1\n        while",
        "    level = 2\n        while",
    ),
)

PLANS = of(
    "intake/rdy.py",
    PLANNER,
    (
        "no reserve",
        "a lowered RDY counts for a second as it was",
        "memory.reserved, memory.reserved_until_s = max(still, connection.rdy), now_s + RESERVED_S",
        "memory.reserved, memory.reserved_until_s = max(still, connection.rdy), now_s",
    ),
    (
        "the last lowering is the whole reserve",
        "the largest RDY of the last second is reserved",
        "= max(still, connection.rdy), now_s",
        "= connection.rdy, now_s",
    ),
    (
        "what is in flight takes no room",
        "what a connection has counts",
        "return max(rdy, reserved, connection.in_flight)",
        "return max(rdy, reserved)",
    ),
    (
        "raised into the room of others",
        "the total is never above the limit",
        "given = min(count, reserved[connection] + max(0, room))",
        "given = count",
    ),
    (
        "one room for all",
        "what one was given is no room for the next",
        "                room -= max(0, given - reserved[connection])\n",
        "",
    ),
    (
        "the end of a reserve is not waited for",
        "what waits for room is looked at again",
        "return raised, min(ends_s, default=now_s + REPLAN_S)",
        "return raised, None",
    ),
    (
        "raised before lowered",
        "lowered ones are sent first",
        "Plan([*lowered.items(), *raised.items()]",
        "Plan([*raised.items(), *lowered.items()]",
    ),
    (
        "everything is sent",
        "only differences are sent",
        "                if given > connection.rdy:\n",
        "                if given >= connection.rdy:\n",
    ),
    (
        "held back, it asks on",
        "held back, nothing is asked for",
        "        if is_held_back:\n            well = []\n",
        "",
    ),
    (
        "the unwell keep their places",
        "a closing or silent connection gets nothing",
        "well = [each for each in connections if each.is_well]",
        "well = list(connections)",
    ),
    (
        "a silent one is forgotten",
        "a connection that becomes well again is looked for",
        "again_s = [now_s + UNWELL_AGAIN_S] if decision.limit and len(well) < len(connections) else []",
        "again_s: list[float] = []",
    ),
    (
        "above max_rdy_count",
        "max_rdy_count is respected",
        "shares[connection] = min(-(-left // (len(well) - number)), connection.max_rdy)",
        "shares[connection] = -(-left // (len(well) - number))",
    ),
    (
        "the remainder is lost",
        "the remainder is spread",
        "min(-(-left // (len(well) - number)), connection.max_rdy)",
        "min(limit // len(well), connection.max_rdy)",
    ),
    (
        "what one may not have is lost",
        "what one may not have goes to the others",
        "enumerate(sorted(well, key=lambda each: each.max_rdy))",
        "enumerate(sorted(well, key=lambda each: -each.max_rdy))",
    ),
    (
        "the same ones every time",
        "places go to those that waited longest",
        "            return 1, self._waiting_since_s(connection)",
        "            return 1, 0.0",
    ),
    (
        "places are kept for ever",
        "a turn ends",
        "        if now_s < self._turn_ends_s(connection):\n            return 0, 0.0",
        "        if now_s < self._turn_ends_s(connection) + 1e9:\n            return 0, 0.0",
    ),
    (
        "the end of a turn is not waited for",
        "a turn ends though nothing happens",
        "        if are_scarce:\n            again_s +=",
        "        if False:\n            again_s +=",
    ),
    (
        "a place just given has no end",
        "a turn ends though nothing happens",
        "for each in wanted if each.rdy or each in raised]",
        "for each in wanted if each.rdy]",
    ),
    (
        "a turn without messages is as long",
        "a place that brings nothing is passed on soon",
        "(LONGEST_TURN_S if connection.message_at_s > turn_began_s else SHORTEST_TURN_S)",
        "LONGEST_TURN_S",
    ),
    (
        "the newest gives up its place",
        "the one that had its place longest is the first to give it up",
        "return 2, -self._memories[connection].raised_at_s",
        "return 2, self._memories[connection].raised_at_s",
    ),
    (
        "who lost a place is first in line",
        "waiting is counted from the place that was lost",
        "                if not count:\n                    memory.lost_place_at_s = now_s\n",
        "",
    ),
)

PROBES = of(
    "intake/rdy.py",
    PLANNER,
    (
        "armed with something in flight",
        "a connection is armed only when nothing is in flight on it",
        "idle = [each for each in well if each.in_flight == 0]",
        "idle = list(well)",
    ),
    (
        "the same connection for every probe",
        "the next probe is on another connection",
        "        if self._armed is not None:\n            self._memories[self._armed].lost_place_at_s = now_s\n",
        "",
    ),
    (
        "never armed when none was idle",
        "armed as soon as one is idle",
        "            if well and self._armed is None:\n                again_s.append(now_s + REPLAN_S)\n",
        "",
    ),
    (
        "a second probe in one epoch",
        "one probe an epoch, also when its connection falls silent",
        "(self._probe_came or self._armed in well)",
        "self._armed in well",
    ),
    (
        "a silent one stays armed",
        "a silent connection is never the probe's",
        "(self._probe_came or self._armed in well)",
        "self._armed is not None",
    ),
    (
        "armed anew at each look",
        "the armed connection stays while its epoch does",
        "if self._armed_epoch == epoch and (",
        "if False and (",
    ),
    (
        "all messages are the probe",
        "one message on the armed connection is worked on",
        "            return int(is_probe)\n",
        "            return count if is_probe else 0\n",
    ),
    (
        "probe after probe",
        "only the first message is the probe",
        "            self._probe_came |= is_probe\n",
        "",
    ),
    (
        "a probe anywhere",
        "only the armed connection's message is the probe",
        "is_probe = connection is self._armed and self._armed_epoch",
        "is_probe = self._armed_epoch",
    ),
    (
        "the others keep their RDY",
        "while probing one connection has a RDY",
        "changes = [(each, 0) for each in connections if each.rdy and each not in wanted]",
        "changes: list[tuple[C, int]] = []",
    ),
    (
        "what comes in a backoff is worked on",
        "what arrives above the limit goes back",
        "return max(0, min(count, decision.limit - in_flight + count))",
        "return count",
    ),
    (
        "a connection without a RDY is starved",
        "starved is who is held up by its RDY",
        "return any(each.rdy and each.in_flight",
        "return any(each.in_flight",
    ),
)

APPLIED = of(
    "consumer.py",
    CONSUMER,
    (
        "what a decision says is not sent",
        "a decision is carried out at once",
        "            self._batches.give_back_waiting()\n        self._apply()\n        return True",
        "            self._batches.give_back_waiting()\n        return True",
    ),
    (
        "what was not admitted is kept",
        "what still arrives after RDY 0 goes back unprocessed",
        "            messages = messages[:admitted]\n        if not messages:",
        "        if not messages:",
    ),
    (
        "the connection of the probe is gone and nobody tells",
        "a lost probe leads on",
        "self._carry_out(self._controller.lost(self.decision.epoch, time.monotonic()))\n        self._apply()",
        "pass\n        self._apply()",
    ),
    (
        "a dead letter says nothing",
        "a probe that is a dead letter leads on",
        "                decided |= self._controller.lost(epoch, now_s)",
        "                pass",
    ),
    (
        "too late is no failure",
        "E_FIN_FAILED of a late message counts",
        "            self._carry_out(self._controller.failed(epoch, time.monotonic()))",
        "            pass",
    ),
)

MUTANTS: tuple[Mutant, ...] = (*TABLE, *FACTS, *WAITS, *PLANS, *PROBES, *APPLIED)
