// The timelines that are due or wait, with search.

import { h } from "./dom.js";
import { empty, notice, panel, state, table } from "./parts.js";
import { count, counted, instant, name } from "./words.js";

export const title = "Timelines";
const STATES = ["leased", "due", "retrying", "waiting", "idle"];
const HEALTH = { leased: "draining", due: "trouble", retrying: "trouble", waiting: "calm", idle: "calm" };
const LIMIT = 200;

export function paths(query) {
  const asked = new URLSearchParams({ limit: LIMIT });
  for (const key of ["text", "route", "sink", "state"]) if (query.get(key)) asked.set(key, query.get(key));
  return { timelines: { path: `api/timelines?${asked}`, everyS: 5 } };
}

export function href(each) {
  const parts = [each.route, each.timeline].map(encodeURIComponent);
  const digest = each.is_revived ? `?digest=${encodeURIComponent(each.digest_id)}` : "";
  return `#/timeline/${parts.join("/")}${digest}`;
}

export function timelineState(each) {
  return [
    state(HEALTH[each.state] ?? "away", each.state || "astray"),
    each.is_revived && h("span", { class: "hint" }, "sent again from the dead list"),
    each.is_orphan && h("span", { class: "hint" }, "orphan: nobody delivers it"),
    each.held && h("span", { class: "hint" }, each.held === "mute" ? "muted" : "snoozed"),
  ];
}

export function render({ status, data, query, nowMs, go }) {
  return [
    panel("Timelines", "Those that are being delivered, then those that are due first.", search(status, query, go), found(data.timelines, query, nowMs)),
  ];
}

function search(status, query, go) {
  const submit = (event) => {
    event?.preventDefault();
    const form = document.getElementById("search");
    const filled = [...new FormData(form)].filter(([, value]) => value !== "");
    go(`#/timelines${filled.length ? `?${new URLSearchParams(filled)}` : ""}`, { replace: true });
  };
  const options = (key, names) =>
    ["", ...names].map((each) => h("option", { value: each, key: each, first: { selected: each === (query.get(key) ?? "") } }, each ? name(each) : "all"));
  return h(
    "form",
    { id: "search", class: "search", role: "search", key: "search", on: { submit } },
    h("label", null, "Text in the name", h("input", { name: "text", type: "search", autocomplete: "off", spellcheck: "false", first: { value: query.get("text") ?? "" } })),
    h("label", null, "Route", h("select", { name: "route", on: { change: submit } }, options("route", status.routes.map((route) => route.name)))),
    h("label", null, "State", h("select", { name: "state", on: { change: submit } }, options("state", STATES))),
    h("button", { type: "submit" }, "Search"),
  );
}

function found(listing, query, nowMs) {
  if (!listing) return empty("Looking …");
  if (!listing.timelines.length) {
    return empty([...query].length ? "No timeline fits this search." : "No timeline waits: there is nothing to deliver.");
  }
  return [
    h("p", { class: "quiet" }, `${counted(listing.timelines.length, "timeline")} of ${count(listing.total)}`),
    listing.is_partial && notice("trouble", "There are more than one search reads: a longer text, a route or a state narrows it."),
    table(
      "Timelines",
      [
        { title: "Timeline", class: "long", cell: (each) => h("a", { href: href(each) }, name(each.shown)) },
        { title: "Route", cell: (each) => name(each.route) },
        { title: "State", cell: timelineState },
        { title: "Due", class: "number", cell: (each) => [each.state === "leased" && "lease ends ", instant(each.at_ms, nowMs)] },
        { title: "Records", class: "number", cell: (each) => count(each.records) },
        {
          title: "Under way",
          cell: (each) => each.digest_id && (each.digest_records || each.attempts)
            ? [counted(each.digest_records, "record"), h("span", { class: "hint" }, counted(each.attempts, "attempt"))]
            : h("span", { class: "quiet" }, "–"),
        },
      ],
      listing.timelines,
      (each) => `${each.route} ${each.timeline} ${each.is_revived ? each.digest_id : ""}`,
    ),
  ];
}
