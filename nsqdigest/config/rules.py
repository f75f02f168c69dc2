"""Rules over several values: each gets the values that were read and reports where they do not fit together.

A value that could not be read is absent: its problem is reported already, and no rule adds a second one because of it.
A rule sees one table; those after `admin` see several. The rules of one kind of sink stand in the file of that kind.
"""

from __future__ import annotations

import importlib.util
import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nsqdigest.base.moments import format_duration
from nsqdigest.base.templates import Template
from nsqdigest.base.words import nearest
from nsqdigest.config.model import Address, Secret, Tls, UnixSocket
from nsqdigest.config.problems import Spot, show
from nsqdigest.config.texts import suggested_field

Values = dict[str, Any]

NSQD_HTTP_PORT = 4151
NSQD_MSG_TIMEOUT_MS = 60_000
"""nsqd's default for `--msg-timeout`."""
LOOKUPD_TCP_PORT = 4160
SHORTEST_TOKEN = 16
"""With `openssl rand -hex` that is 64 bits, which no rate of guesses finds."""


def _have(values: Values, *names: str) -> bool:
    return all(name in values for name in names)


def is_loopback(host: str) -> bool:
    if host.rstrip(".").lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_local(listen: Address | UnixSocket) -> bool:
    """Whether only this machine can reach it."""
    return isinstance(listen, UnixSocket) or is_loopback(listen.host)


def nsq(values: Values, spot: Spot) -> None:
    if values.get("compression") == "snappy" and importlib.util.find_spec("cramjam") is None:
        (spot / "compression").problem(
            '"snappy" needs a package that is not installed',
            'run: pip install "nsqdigest[snappy]", or write compression = "deflate"',
        )
    far = first_far(values)
    if far is not None and is_secret_in_the_clear(values):
        (spot / "auth_secret").warning(f"goes to {far} in the clear", "write [nsq.tls] as well")
    elif is_secret_in_the_clear(values) and values.get("lookupd_http_addresses"):
        (spot / "auth_secret").warning(
            "goes in the clear to every nsqd that a nsqlookupd names", "write [nsq.tls] as well"
        )
    if values.get("nsqd_tcp_addresses") == () == values.get("lookupd_http_addresses"):
        here = spot.first_written("nsqd_tcp_addresses", "lookupd_http_addresses")
        what = "has nothing in it" if here.written else "missing"
        here.problem(
            what, 'write nsqd_tcp_addresses = ["127.0.0.1:4150"] or lookupd_http_addresses = ["127.0.0.1:4161"]'
        )
    for index, address in enumerate(values.get("lookupd_http_addresses", ())):
        if address.port == LOOKUPD_TCP_PORT:
            (spot / "lookupd_http_addresses" / index).warning(
                f"{LOOKUPD_TCP_PORT} is the TCP port of most nsqlookupds",
                f"the HTTP port of most is {LOOKUPD_TCP_PORT + 1}",
            )
        if address.port == NSQD_HTTP_PORT:
            (spot / "lookupd_http_addresses" / index).warning(
                f"{NSQD_HTTP_PORT} is the HTTP port of most nsqds",
                f"the HTTP port of most nsqlookupds is {LOOKUPD_TCP_PORT + 1}; an nsqd stands in nsqd_tcp_addresses",
            )
    if values.get("allow_nsqds") and values.get("lookupd_http_addresses") == ():
        (spot / "allow_nsqds").warning("has no use: the file names no nsqlookupd", "leave it out")
    warn_of_http_ports(values, spot)


def warn_of_http_ports(values: Values, spot: Spot) -> None:
    for index, address in enumerate(values.get("nsqd_tcp_addresses", ())):
        if address.port == NSQD_HTTP_PORT:
            (spot / "nsqd_tcp_addresses" / index).warning(
                f"{NSQD_HTTP_PORT} is the HTTP port of most nsqds", f"the TCP port of most is {NSQD_HTTP_PORT - 1}"
            )


def is_secret_in_the_clear(values: Values) -> bool:
    return values.get("auth_secret") is not None and "tls" in values and values["tls"] is None


def first_far(values: Values) -> Address | None:
    return next((each for each in values.get("nsqd_tcp_addresses", ()) if not is_loopback(each.host)), None)


def tls(values: Values, spot: Spot) -> None:
    if values.get("insecure"):
        (spot / "insecure").warning(
            "neither the certificate nor the host name is checked, so any server can pose as nsqd",
            "name nsqd's authority in ca_file instead",
        )
    if _have(values, *_TLS_KEYS):
        tls_files(Tls(**values), spot)


_TLS_KEYS = ("ca_file", "cert_file", "key_file", "insecure")


def redis(values: Values, spot: Spot) -> None:
    if not _have(values, "url", *_TLS_KEYS):
        return
    if not values["url"].startswith("rediss"):
        for key in _TLS_KEYS:
            if values[key]:
                (spot / key).problem(
                    "has no effect: redis.url is without TLS", "write rediss:// in url, or leave it out"
                )
        return
    if values["insecure"]:
        (spot / "insecure").warning(
            "neither the certificate nor the host name is checked, so any server can pose as Redis",
            "name the authority of Redis in ca_file instead",
        )
    tls_files(Tls(**{key: values[key] for key in _TLS_KEYS}), spot)


def tls_files(settings: Tls, spot: Spot) -> None:
    """Reports each file of these settings that cannot be used, as a problem of its option."""
    if settings.key_file and not settings.cert_file:
        (spot / "key_file").problem("is the key of no certificate", "write cert_file as well")
        return
    if not (settings.ca_file or settings.cert_file):
        return
    # Only who names a file loads TLS.
    from nsqdigest.config.tls_files import TlsFileProblem, client, unreadable_files  # noqa: PLC0415

    if unreadable := unreadable_files(settings):
        for problem in unreadable:
            here = spot / problem.key
            if spot.findings.without_secrets:
                spot.findings.let_pass(here.path, problem.what)
            else:
                here.problem(problem.what, problem.remedy)
        if not spot.findings.without_secrets:
            return
        settings = _without(settings, {problem.key for problem in unreadable})
    try:
        client(settings)
    except TlsFileProblem as problem:
        (spot / problem.key).problem(problem.what, problem.remedy)


def _without(settings: Tls, missing: set[str]) -> Tls:
    """What is left to check: a certificate and its key only together."""
    if missing & {"cert_file", "key_file"}:
        settings = replace(settings, cert_file="", key_file="")
    return replace(settings, ca_file="") if "ca_file" in missing else settings


def backoff(values: Values, spot: Spot) -> None:
    if values.get("strategy") == "decorrelated" and (spot / "jitter").written:
        (spot / "jitter").problem('strategy "decorrelated" has its own jitter', "leave this line out")
    if _have(values, "base_ms", "max_duration_ms") and 0 < values["max_duration_ms"] < values["base_ms"]:
        base = format_duration(values["base_ms"])
        spot.first_written("max_duration", "base").problem(
            "max_duration is shorter than base", f'write max_duration = "{base}" or more, or "0s" to never back off'
        )


def retries(values: Values, spot: Spot) -> None:
    if _have(values, "retry_base_ms", "retry_cap_ms") and values["retry_base_ms"] > values["retry_cap_ms"]:
        base = format_duration(values["retry_base_ms"])
        spot.first_written("retry_cap", "retry_base").problem(
            "retry_cap is shorter than retry_base", f'write retry_cap = "{base}" or more'
        )


def admin(values: Values, spot: Spot) -> None:
    if not _have(values, "listen", "token", "read_token"):
        return
    listen: Address | UnixSocket | None = values["listen"]
    tokens: dict[str, Secret] = {key: values[key] for key in ("token", "read_token") if values[key] is not None}
    if isinstance(listen, Address) and not is_local(listen) and not tokens:
        (spot / "listen").problem(
            f"{show(str(listen))} can be reached from other machines",
            f'write token = "env:NAME" as well, or listen = "127.0.0.1:{listen.port}"',
        )
    if len(tokens) == 2 and values["token"] == values["read_token"]:
        (spot / "read_token").problem("is the same as token, which may write", "make another one: openssl rand -hex 24")
    for key, token in tokens.items():
        length = len(token.reveal())
        if listen is None or length >= SHORTEST_TOKEN:
            continue
        report = (spot / key).warning if is_local(listen) else (spot / key).problem
        report(
            f"has {length} characters, and can be guessed",
            f"make one of {SHORTEST_TOKEN} or more: openssl rand -hex 24",
        )


def lease_and_timeouts(scheduler: Values, sinks: Mapping[str, Values], root: Spot) -> None:
    """Half a lease is what remains for a send that begins right after a renewal came late."""
    lease_ms = scheduler.get("lease_ms")
    timeouts = [(sink["timeout_ms"], name) for name, sink in sinks.items() if "timeout_ms" in sink]
    if lease_ms is None or not timeouts:
        return
    timeout_ms, name = max(timeouts)
    if lease_ms >= 2 * timeout_ms:
        return
    lease, timeout, needed = (format_duration(each) for each in (lease_ms, timeout_ms, 2 * timeout_ms))
    lease_spot = root / "scheduler" / "lease"
    spot = lease_spot if lease_spot.written else (root / "sinks" / name).first_written("timeout")
    spot.problem(
        f"scheduler.lease is {lease}, less than twice the timeout of sink {show(name)}, {timeout}",
        f'write lease = "{needed}" or more under [scheduler], or timeout = "{format_duration(lease_ms // 2)}" or less',
    )


def routes(routes: Sequence[Values], policies: Sequence[str], sinks: Sequence[str], root: Spot) -> None:
    """Every route has a name of its own, and the policy and the sink that it names exist."""
    first_of_name: dict[str, int] = {}
    for index, route in enumerate(routes):
        spot = root / "routes" / index
        if "topic" in route and route.get("name") == "":
            route["name"] = route["topic"].removesuffix("#ephemeral")
        name = route.get("name")
        if name is not None and name in first_of_name:
            other = f"routes[{first_of_name[name]}]"
            spot.first_written("name").problem(
                f"{show(name)} is the name of {other} too", f'write name = "{name}-2" or so'
            )
        elif name is not None:
            first_of_name[name] = index
        if "policy" in route:
            _refuse_unknown(spot.first_written("policy"), "policy", route["policy"], policies, "policies")
        for place, sink in enumerate(route.get("sink", ())):
            here = spot.first_written("sink")
            _refuse_unknown(here / place if len(route["sink"]) > 1 else here, "sink", sink, sinks, "sinks")
        _dropped_fields(route, spot)
        _ends(route, spot)
        if route.get("timeline") and not Template.parse(route["timeline"]).fields:
            spot.first_written("timeline").warning(
                "has no field: all events of the route go into one timeline",
                suggested_field(route["timeline"], "user:{user.id}") + ", unless that is meant",
            )


def _refuse_unknown(spot: Spot, what: str, wanted: str, known: Sequence[str], table: str) -> None:
    if wanted not in known:
        guess = nearest(wanted, known)
        remedy = f'did you mean "{guess}"?' if guess else f"write [{table}.{wanted}]"
        spot.problem(f"there is no {what} {show(wanted)}", remedy)


def _dropped_fields(route: Values, spot: Spot) -> None:
    """The name of a timeline, a key and a timestamp are taken from the whole event; groups from what was stored."""
    for place, dropped in enumerate(route.get("drop", ())):
        here = spot / "drop" / place

        def is_within(path: str, whole: str = dropped) -> bool:
            return f"{path}.".startswith(f"{whole}.")

        if is_within(route.get("group", "")):
            here.problem(
                f"{show(dropped)} is not stored, and the records are grouped by {show(route['group'])}",
                "leave it out here, or write another group",
            )
        for key in ("timeline", "key"):
            if route.get(key) and any(is_within(field) for field in Template.parse(route[key]).fields):
                here.warning(
                    f"{show(dropped)} is left out of the record, but its {key} holds it, which is stored and shown",
                    f"write another {key}, unless that is meant",
                )


def _ends(route: Values, spot: Spot) -> None:
    if route.get("cancel") and route.get("key") == "":
        (spot / "cancel").problem(
            "needs key: an event ends the record of its own key", 'write key = "{id}", with the field that both share'
        )
    if route.get("cancel") == () and (spot / "on_cancel").written:
        (spot / "on_cancel").warning("has no effect without cancel", 'leave it out, or write cancel = {status = "…"}')


def ends(routes: Sequence[Values], policies: Mapping[str, Values], root: Spot) -> None:
    """What was shown, and what has ended, is known for the dedupe window of the policy."""
    for index, route in enumerate(routes):
        window_ms = policies.get(route.get("policy", ""), {}).get("dedupe_window_ms")
        if route.get("cancel") and window_ms == 0:
            (root / "routes" / index / "cancel").problem(
                f"needs dedupe_window, which is 0s in the policy {show(route['policy'])}: so long it is known what has "
                "ended",
                'write dedupe_window = "15m" or more in it',
            )


SINK_MARK = "@"
"""Between the names of route and sink. No name in the file has it."""


def per_sink(routes: Sequence[Values]) -> list[Values]:
    """A route for each sink. The first has the name that the file gives: so the timelines that are there stay its own
    when the file names a second sink. Each further one is called ROUTE@SINK."""
    return [
        {**{key: value for key, value in route.items() if key != "sink"}, "sink": sink}
        | ({"name": f"{route['name']}{SINK_MARK}{sink}"} if place and "name" in route else {})
        for route in routes
        for place, sink in enumerate(route.get("sink", ()))
    ]


def quiet_hours(
    routes: Sequence[Values], policies: Mapping[str, Values], sinks: Mapping[str, Values], root: Spot
) -> None:
    """A digest that failed before its quiet hours is tried again when they end, if it is not too old by then."""
    for route in routes:
        policy, sink = policies.get(route.get("policy", ""), {}), sinks.get(route.get("sink", ""), {})
        windows, max_age_ms = policy.get("quiet", ()), sink.get("max_age_ms")
        longest_ms = max((60_000 * len(window.minutes) for window in windows), default=0)
        if max_age_ms is not None and longest_ms >= max_age_ms:
            (root / "policies" / route["policy"] / "quiet").warning(
                f"lasts {format_duration(longest_ms)}, and max_age of sink {show(route['sink'])} is "
                f"{format_duration(max_age_ms)}: a digest that fails before moves to the dead list untried",
                f'write max_age = "{format_duration(2 * longest_ms)}" or more in it',
            )


def waits(nsq: Values, redis: Values, root: Spot) -> None:
    """A write that hangs longer than nsqd waits comes back, and is written again, while it hangs."""
    if not _have(nsq, "msg_timeout_ms") or not _have(redis, "timeout_ms"):
        return
    msg_timeout_ms = nsq["msg_timeout_ms"] or NSQD_MSG_TIMEOUT_MS
    if redis["timeout_ms"] >= msg_timeout_ms:
        timeout, msg_timeout = format_duration(redis["timeout_ms"]), format_duration(msg_timeout_ms)
        whose = "nsq.msg_timeout" if nsq["msg_timeout_ms"] else "the msg_timeout of most nsqds"
        spot = root / "redis" / "timeout"
        (spot if spot.written else root / "nsq" / "msg_timeout").warning(
            f"redis.timeout is {timeout}, and {whose} is {msg_timeout}: nsqd hands messages over again while they wait",
            f'write timeout = "{format_duration(msg_timeout_ms // 2)}" or less under [redis]',
        )


def unused(routes: Sequence[Values], tree: Mapping[str, Any], root: Spot) -> None:
    policies = {route.get("policy") for route in routes}
    sinks = {sink for route in routes for sink in route.get("sink", ())}
    for table, key, used in (("policies", "policy", policies), ("sinks", "sink", sinks)):
        named = tree.get(table)
        for name in named if isinstance(named, dict) else ():
            if name not in used:
                (root / table / name).warning(
                    f"no route has this {key}", f'write {key} = "{name}" in one, or leave it out'
                )


def dead_letters(nsq: Values, routes: Sequence[Values], root: Spot) -> None:
    topic = nsq.get("dead_letter_topic")
    for index, route in enumerate(routes):
        if topic and route.get("topic") == topic:
            (root / "routes" / index / "topic").problem(
                f"{show(topic)} is nsq.dead_letter_topic; dead letters would come back as events", "write another topic"
            )
