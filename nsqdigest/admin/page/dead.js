// Digests that were given up, and sending them again.

import { h } from "./dom.js";
import { chosen } from "./deliveries.js";
import { button, empty, notice, panel, table } from "./parts.js";
import { count, counted, instant, name, said } from "./words.js";

export const title = "Dead digests";
const LIMIT = 100;

export function paths(query) {
  const asked = new URLSearchParams({ limit: LIMIT });
  if (query.get("sink")) asked.set("sink", query.get("sink"));
  return { dead: { path: `api/dead?${asked}`, everyS: 5 } };
}

export function render({ status, data, query, nowMs, act }) {
  const found = data.dead;
  return panel(
    "Dead digests",
    "Given up, and kept whole. Sent again, a digest has the id and the records that it had.",
    chosen("#/dead", status.sinks.map((sink) => sink.name), query.get("sink") ?? ""),
    !found ? empty("Looking …") : found.dead.length ? listed(found, nowMs, act) : empty(query.get("sink") ? ["No digest of sink ", name(query.get("sink")), " is dead."] : "No digest is dead."),
  );
}

function listed(found, nowMs, act) {
  const { dead } = found;
  return [
    h(
      "div",
      { class: "heading" },
      h("p", { class: "quiet" }, `${counted(dead.length, "digest")} of ${count(found.total)} in the dead list`),
      act.isPossible && dead.length > 1 && button(`Send these ${count(dead.length)} again`, null, () => act.replay(dead.map((each) => each.id))),
    ),
    found.is_partial && notice("trouble", "The list is long: older ones may be missing here. nsqdigest dead list has them all."),
    table(
      "Dead digests",
      [
        { title: "Timeline", class: "long", cell: (each) => name(each.timeline) },
        { title: "Sink", cell: (each) => name(each.sink) },
        { title: "Reason", cell: (each) => [said(each.reason), each.cause && h("span", { class: "hint" }, said(each.cause)), each.answer && h("span", { class: "hint" }, said(each.answer))] },
        { title: "Died", class: "number", cell: (each) => instant(each.since_ms, nowMs) },
        { title: "Attempts", class: "number", cell: (each) => count(each.attempts) },
        { title: "Records", class: "number", cell: (each) => count(each.records) },
        { title: "Digest", cell: (each) => h("code", null, each.id) },
        { title: "", class: "action", cell: (each) => act.isPossible && button("Send again", `Send again: digest ${each.id}`, () => act.replay([each.id])) },
      ],
      dead,
      (each) => each.id,
    ),
  ];
}
