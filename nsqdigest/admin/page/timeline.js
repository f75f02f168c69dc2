// One timeline: when it goes out and why then, what it holds, what was delivered of it.

import { h } from "./dom.js";
import { listed } from "./deliveries.js";
import { button, empty, facts, notice, panel, table } from "./parts.js";
import { timelineState } from "./timelines.js";
import { block, count, counted, instant, name, said, stamp, visible } from "./words.js";

export const title = "Timeline";

export function paths(query, [route, timeline]) {
  const asked = new URLSearchParams({ route, timeline });
  if (query.get("digest")) asked.set("digest", query.get("digest"));
  return { timeline: { path: `api/timeline?${asked}`, everyS: 3 } };
}

export function render({ data, nowMs, act, parts: [route, timeline] }) {
  const found = data.timeline;
  if (!found) return panel("Timeline", null, h("p", null, name(timeline), " of route ", name(route)), empty("Looking …"));
  return [
    head(found, nowMs, act),
    explanation(found.explanation, nowMs),
    found.digest && underWay(found, nowMs),
    panel("Records", "They wait for the next digest; the newest first.", records("Records that wait", found.records, nowMs)),
    panel("What was delivered", "As this daemon remembers it.", deliveries(found.deliveries, nowMs)),
  ];
}

function head(found, nowMs, act) {
  const { timeline: each, hold } = found;
  return h(
    "section",
    { class: "panel", key: "head", "aria-labelledby": "of-timeline" },
    h(
      "div",
      { class: "heading" },
      h("h2", { id: "of-timeline" }, name(each.shown)),
      act.isPossible && !each.is_orphan && button("Deliver now", `Deliver now: timeline ${visible(each.shown)}`, () => act.flush(each)),
    ),
    hold && notice("trouble", `${hold.kind === "mute" ? "Muted" : "Snoozed"} by `, name(hold.by), ", ends ", instant(hold.until_ms, nowMs), "."),
    facts([
      ["State", timelineState(each)],
      [each.state === "leased" ? "Lease ends" : "Due", instant(each.at_ms, nowMs)],
      ["Records", count(each.records)],
      ["Route", name(each.route)],
      ["Sink", found.sink ? name(found.sink) : "none: the file does not have this route"],
      ["Digests so far", count(found.iteration)],
      ["Superseded", count(found.superseded)],
      ["Dropped", count(found.dropped)],
      found.last_digest_id && ["Last digest", h("code", null, found.last_digest_id)],
    ]),
  );
}

function explanation(told, nowMs) {
  return panel(
    "Why it is due then",
    null,
    h("p", { class: "sentence" }, said(told.sentence)),
    h(
      "ol",
      { class: "reasons" },
      told.reasons.map((reason, place) =>
        h("li", { key: place }, said(reason.text), reason.at_ms !== null && h("span", { class: "at" }, stamp(reason.at_ms, nowMs))),
      ),
    ),
  );
}

function underWay(found, nowMs) {
  const { digest } = found;
  return panel(
    "Digest under way",
    null,
    facts([
      ["Id", h("code", null, digest.id)],
      ["Records", count(digest.records)],
      ["Attempts", count(digest.attempts)],
      ["Opened", instant(digest.opened_ms, nowMs)],
      ["First tried", instant(digest.since_ms, nowMs)],
      ["Superseded", count(digest.superseded)],
      ["Dropped", count(digest.dropped)],
    ]),
    h("details", { key: "records" }, h("summary", null, counted(found.digest_records.length, "record")), records("Records of the digest under way", found.digest_records, nowMs)),
  );
}

function records(caption, list, nowMs) {
  if (!list.length) return empty("None.");
  return table(
    caption,
    [
      { title: "Key", class: "key long", cell: (record) => name(record.key) },
      { title: "Time", cell: (record) => stamp(record.timestamp_ms, nowMs) },
      { title: "Event", class: "wide", cell: (record) => [block(record.value), record.is_cut && h("span", { class: "hint" }, "cut here: it is longer")] },
    ],
    list,
    (record) => record.key,
  );
}

function deliveries(list, nowMs) {
  return list.length ? listed("What was delivered of this timeline", list, nowMs, false) : empty("Nothing since this daemon started.");
}
