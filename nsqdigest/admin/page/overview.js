// The first view: what is wrong, then how much flows, then each topic, sink and route.

import { chart } from "./charts.js";
import { h } from "./dom.js";
import { button, controller, empty, facts, notice, panel, probe, state, table } from "./parts.js";
import { count, counted, duration, instant, name, rate, said, stamp, visible } from "./words.js";

export const title = "Overview";

export function paths() {
  return { history: { path: "api/history", everyS: 10 } };
}

export function render({ status, data, nowMs, act }) {
  return [
    troubles(status),
    charts(status, data.history),
    topics(status, nowMs, act),
    sinks(status, nowMs, act),
    routes(status, nowMs, act),
    orphans(status),
    daemons(status, nowMs),
    store(status, nowMs),
  ];
}

function troubles(status) {
  const wrong = status.checks.filter((check) => check.health !== "well");
  if (!wrong.length) return null;
  return panel(
    "What is wrong",
    null,
    h(
      "ul",
      { class: "checks" },
      wrong.map((check) =>
        h("li", { key: check.name }, state(check.health, name(check.name)), h("span", null, said(check.detail))),
      ),
    ),
  );
}

function charts(status, history) {
  const body =
    !history || !history.events_in.length
      ? empty("The first figures come within a few seconds.")
      : h("div", { class: "charts" }, drawn(status, history));
  return panel("Last quarter of an hour", null, body);
}

function drawn(status, history) {
  const every = history.interval_s;
  const series = (of, values, kind) => ({ title: of, values, kind });
  return [
    chart("Events", [series("in", history.events_in, "one"), series("stored", history.events_stored, "two")], every, rate),
    chart("Digests", [series("out", history.digests_out, "one")], every, rate),
    chart("Timelines", [series("waiting", history.waiting, "one"), series("overdue", history.overdue, "bad")], every, count),
    chart(
      "Messages in flight",
      [series("in flight", history.in_flight, "one"), { ...series("backoff level", history.level, "bad"), isOnItsOwn: true }],
      every,
      count,
    ),
    chart("Event loop lag", [series("lag", history.event_loop_lag_s, "one")], every, duration),
    age(status),
  ];
}

function age(status) {
  const { message_age_s: seconds, rates } = status;
  return h(
    "figure",
    { class: "chart", key: "minute" },
    h("figcaption", null, "In the last minute"),
    facts([
      ["from nsqd to stored", seconds === null ? "nothing came" : duration(seconds)],
      ["records delivered", rate(rates.records_out)],
      ["dead letters", rate(rates.dead_letters)],
      ["timelines", count(status.timelines)],
      ["dead digests", h("a", { href: "#/dead" }, count(status.dead_digests))],
    ]),
  );
}

// -- topics

function topics(status, nowMs, act) {
  if (!status.topics.length) return panel("Topics", null, empty("No route names a topic."));
  return panel(
    "Topics",
    null,
    table(
      "Topics: how each is read",
      [
        { title: "Topic", cell: (topic) => name(topic.name) },
        { title: "State", cell: (topic) => topicState(topic, nowMs) },
        { title: "Level", class: "number", cell: (topic) => count(topic.backoff.level) },
        { title: "Next probe", class: "number", cell: (topic) => probe(topic.backoff, nowMs) },
        { title: "In flight", class: "number", cell: (topic) => `${count(topic.in_flight)} of ${count(topic.max_in_flight)}` },
        { title: "Waits in nsqd", class: "number", cell: (topic) => (topic.depth === null ? unknown() : count(topic.depth)) },
        { title: "Comes in", class: "number", cell: (topic) => rate(topic.received_per_s) },
        { title: "", class: "action", cell: (topic) => pausing("topic", topic, act) },
      ],
      status.topics,
      (topic) => topic.name,
    ),
    connections(status),
  );
}

function topicState(topic, nowMs) {
  const parts = [controller(topic.backoff)];
  if (topic.paused_since_ms !== null) parts.push(since(topic.paused_since_ms, nowMs));
  else if (topic.health !== "well") parts.push(h("span", { class: "hint" }, said(topic.detail)));
  if (topic.is_starved) parts.push(h("span", { class: "hint" }, "max_in_flight limits it"));
  return parts;
}

function connections(status) {
  const rows = status.topics.flatMap((topic) => topic.connections.map((each) => ({ topic: topic.name, ...each })));
  if (!rows.length) return empty("No nsqd is known yet.");
  const connected = rows.filter((each) => each.is_connected).length;
  return h(
    "details",
    { key: "connections", first: { open: rows.length <= 12 } },
    h("summary", null, `Connections: ${count(connected)} of ${count(rows.length)}`),
    table(
      "Connections to nsqd",
      [
        { title: "nsqd", cell: (each) => name(each.nsqd) },
        { title: "Topic", cell: (each) => name(each.topic) },
        { title: "State", cell: (each) => (each.is_connected ? state("well", "connected") : state("failing", "not connected")) },
        { title: "RDY", class: "number", cell: (each) => count(each.rdy) },
        { title: "In flight", class: "number", cell: (each) => count(each.in_flight) },
        { title: "Named by", cell: (each) => each.sources.map((source) => [name(source), " "]) },
      ],
      rows,
      (each) => `${each.topic} ${each.nsqd}`,
    ),
  );
}

// -- sinks and routes

function sinks(status, nowMs, act) {
  return panel(
    "Sinks",
    null,
    table(
      "Sinks: where digests go",
      [
        { title: "Sink", cell: (sink) => [link("#/deliveries", { sink: sink.name }, name(sink.name)), " ", h("span", { class: "hint" }, sink.type)] },
        { title: "State", cell: (sink) => [state(sink.health, sink.state), sink.detail !== sink.state && h("span", { class: "hint" }, said(sink.detail))] },
        { title: "Breaker", cell: (sink) => [controller(sink.backoff), sink.backoff.level > 0 && ` level ${count(sink.backoff.level)}`] },
        { title: "Next probe", class: "number", cell: (sink) => probe(sink.backoff, nowMs) },
        { title: "Sending", class: "number", cell: (sink) => `${count(sink.sending)} of ${count(sink.concurrency)}` },
        { title: "Waiting", class: "number", cell: (sink) => waits(sink.waits, sink.oldest_due_s) },
        { title: "Dead", class: "number", cell: (sink) => (sink.dead ? link("#/dead", { sink: sink.name }, count(sink.dead)) : "0") },
        { title: "Delivers", class: "number", cell: (sink) => rate(sink.delivered_per_s) },
        { title: "Last delivery", class: "number", cell: (sink) => instant(sink.last_delivery_ms, nowMs) },
        { title: "", class: "action", cell: (sink) => pausing("sink", sink, act) },
      ],
      status.sinks,
      (sink) => sink.name,
    ),
  );
}

function routes(status, nowMs, act) {
  return panel(
    "Routes",
    null,
    table(
      "Routes: from a topic to a sink",
      [
        { title: "Route", cell: (route) => link("#/timelines", { route: route.name }, name(route.name)) },
        { title: "From, to", cell: (route) => [name(route.topic), " \u2192 ", name(route.sink)] },
        { title: "Policy", cell: (route) => [name(route.policy), " ", routeState(route, nowMs)] },
        { title: "Waiting", class: "number", cell: (route) => count(route.waiting) },
        { title: "In delivery", class: "number", cell: (route) => count(route.leased) },
        { title: "Overdue", class: "number", cell: (route) => waits(route.overdue, route.oldest_due_s) },
        { title: "Records", class: "number", cell: (route) => count(route.open_records) },
        { title: "", class: "action", cell: (route) => pausing("route", route, act) },
      ],
      status.routes,
      (route) => route.name,
    ),
  );
}

const HELD = { snooze: "snoozed", mute: "muted" };

function routeState(route, nowMs) {
  const held = Object.entries(route.held).filter(([, number]) => number);
  return [
    route.paused_since_ms !== null && [state("trouble", "paused"), since(route.paused_since_ms, nowMs)],
    route.quiet_until_ms !== null && h("span", { class: "hint" }, "quiet hours end ", instant(route.quiet_until_ms, nowMs)),
    held.map(([kind, number]) => h("span", { class: "hint", key: kind }, `${count(number)} ${HELD[kind] ?? kind}`)),
  ];
}

function waits(number, oldestS) {
  if (!number) return "0";
  return [h("b", null, count(number)), h("span", { class: "hint" }, `oldest ${duration(oldestS)}`)];
}

function since(ms, nowMs) {
  return h("span", { class: "hint" }, "since ", stamp(ms, nowMs));
}

function unknown() {
  return h("span", { class: "quiet", title: "no nsqd has said" }, "–");
}

function pausing(kind, each, act) {
  if (!act.isPossible) return null;
  const isPaused = each.paused_since_ms !== null;
  const verb = isPaused ? "Resume" : "Pause";
  return button(verb, `${verb} ${kind} ${visible(each.name)}`, () => act.pause(kind, each.name, !isPaused));
}

export function link(view, filters, text) {
  return h("a", { href: `${view}?${new URLSearchParams(filters)}` }, text);
}

// -- the rest

function orphans(status) {
  const found = Object.entries(status.orphans).filter(([, records]) => records);
  if (!found.length) return null;
  return notice(
    "trouble",
    "Nobody delivers these, as the file does not have their routes any more: ",
    found.map(([route, records]) => [name(route), ` (${counted(records, "record")}) `]),
    "– see ",
    h("code", null, "nsqdigest adopt"),
    " and ",
    h("code", null, "nsqdigest delete --route"),
    ".",
  );
}

function daemons(status, nowMs) {
  const differing = status.daemons.filter((daemon) => daemon.differs).length;
  return panel(
    "Daemons",
    null,
    differing > 0 &&
      notice("trouble", `${counted(differing, "daemon")} ${differing === 1 ? "has" : "have"} a file that says something else.`),
    status.daemons.length
      ? table(
          "Daemons of this namespace",
          [
            { title: "Daemon", cell: (daemon) => [name(`${daemon.host}:${daemon.pid}`), daemon.is_this && h("span", { class: "hint" }, "this one")] },
            { title: "File", cell: (daemon) => fileState(daemon, status.version) },
            { title: "Settings", cell: (daemon) => h("code", null, daemon.config_hash) },
            { title: "Version", cell: (daemon) => name(daemon.version) },
            { title: "Started", class: "number", cell: (daemon) => instant(daemon.started_ms, nowMs) },
            { title: "Seen", class: "number", cell: (daemon) => instant(daemon.seen_ms, nowMs) },
          ],
          status.daemons,
          (daemon) => daemon.id,
        )
      : empty("No daemon has checked in yet."),
  );
}

function fileState(daemon, version) {
  if (daemon.differs) return state("trouble", "differs");
  if (daemon.version !== version) return state("away", "not comparable");
  return state("well", "the same");
}

function store(status, nowMs) {
  const { store: redis } = status;
  return panel(
    "Store",
    null,
    facts([
      ["Redis", state(redis.health, said(redis.detail))],
      ["Address", name(redis.redis)],
      ["Version", redis.version ? name(redis.version) : "not known yet"],
      ["Partitions", count(redis.partitions)],
      ["Figures read", instant(redis.figures_ms, nowMs)],
    ]),
  );
}
