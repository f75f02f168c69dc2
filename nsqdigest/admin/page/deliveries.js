// What became of digests: the last attempts that this daemon remembers.

import { h } from "./dom.js";
import { empty, panel, state, table } from "./parts.js";
import { href } from "./timelines.js";
import { count, duration, name, said, stamp } from "./words.js";

export const title = "Deliveries";
const LIMIT = 200;

export function paths(query) {
  const asked = new URLSearchParams({ limit: LIMIT });
  for (const key of ["sink", "route"]) if (query.get(key)) asked.set(key, query.get(key));
  return { deliveries: { path: `api/deliveries?${asked}`, everyS: 3 } };
}

export function render({ status, data, query, nowMs }) {
  const found = data.deliveries;
  return panel(
    "Deliveries",
    "Attempts that this daemon remembers, the newest first.",
    chosen("#/deliveries", status.sinks.map((sink) => sink.name), query.get("sink") ?? ""),
    !found ? empty("Looking …") : found.deliveries.length ? listed("Deliveries", found.deliveries, nowMs, true) : empty(nothing(query.get("sink"))),
  );
}

/** A reload that changes a sink forgets its attempts, and an address may name a sink that is not there. */
function nothing(sink) {
  return sink
    ? ["This daemon remembers no attempt of sink ", name(sink), ": none was made since it started, or since a reload changed the sink."]
    : "This daemon remembers no attempt: none was made since it started, or since a reload changed its sinks.";
}

/** Links that choose one of the sinks. */
export function chosen(view, sinks, sink) {
  const names = sink && !sinks.includes(sink) ? [...sinks, sink] : sinks;
  return h(
    "nav",
    { class: "chosen", "aria-label": "Sink", key: "chosen" },
    ["", ...names].map((each) =>
      h(
        "a",
        { key: each, href: each ? `${view}?${new URLSearchParams({ sink: each })}` : view, "aria-current": each === sink ? "true" : null },
        each ? name(each) : "all sinks",
      ),
    ),
  );
}

export function listed(caption, deliveries, nowMs, isOfMany) {
  return table(
    caption,
    [
      { title: "When", cell: (each) => stamp(each.at_ms, nowMs) },
      isOfMany && { title: "Timeline", class: "long", cell: (each) => h("a", { href: href(each) }, name(each.timeline)) },
      { title: "Outcome", cell: (each) => [outcome(each.outcome), each.cause && h("span", { class: "hint" }, said(each.cause))] },
      isOfMany && { title: "Sink", cell: (each) => name(each.sink) },
      { title: "Attempt", class: "number", cell: (each) => count(each.attempt) },
      { title: "Records", class: "number", cell: (each) => count(each.records) },
      { title: "Took", class: "number", cell: (each) => duration(each.took_s) },
      { title: "Digest", cell: (each) => h("code", null, each.digest_id) },
    ].filter(Boolean),
    deliveries,
    (each) => `${each.digest_id} ${each.attempt} ${each.at_ms}`,
  );
}

function outcome(verdict) {
  if (verdict === "delivered") return state("well", "delivered");
  return state(verdict === "refused" || verdict === "gone" ? "failing" : "trouble", verdict);
}
