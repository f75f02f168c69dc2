// Pieces that several views share: tables, states, panels, notices.

import { h } from "./dom.js";
import { instant } from "./words.js";

const SIGNS = { well: "\u2713", trouble: "!", failing: "\u00d7", draining: "\u2193", away: "?", calm: "\u00b7" };

/** A state in colour, with a sign and in words: no one of them alone. */
export function state(health, text) {
  return h("span", { class: `state ${health}` }, h("span", { class: "sign", "aria-hidden": "true" }, SIGNS[health]), text);
}

export function sign(health) {
  return SIGNS[health];
}

export function panel(title, about, ...children) {
  const id = `of-${title.toLowerCase().replace(/\W+/g, "-")}`;
  return h(
    "section",
    { class: "panel", key: title, "aria-labelledby": id },
    h("div", { class: "heading" }, h("h2", { id }, title), about && h("p", { class: "quiet" }, about)),
    children,
  );
}

export function empty(text) {
  return h("p", { class: "empty" }, text);
}

export function notice(kind, ...children) {
  return h("p", { class: `notice ${kind}`, key: `notice ${kind}` }, children);
}

export function button(text, label, onClick, props) {
  return h("button", { type: "button", "aria-label": label, on: { click: onClick }, ...props }, text);
}

/** `columns`: {title, cell, class}; the first is the heading of its row. `keyOf` tells rows apart. On a narrow screen
 * each row is a block of lines, so the roles are written out: a table that is laid out otherwise loses them. */
export function table(caption, columns, rows, keyOf) {
  const cell = (row) => (column, place) =>
    h(
      place === 0 ? "th" : "td",
      {
        role: place === 0 ? "rowheader" : "cell",
        scope: place === 0 ? "row" : null,
        class: column.class,
        "data-title": column.title,
      },
      h("div", null, column.cell(row)),
    );
  return h(
    "table",
    { role: "table", key: caption },
    h("caption", { class: "unseen" }, caption),
    h(
      "thead",
      { role: "rowgroup" },
      h(
        "tr",
        { role: "row" },
        columns.map(({ title, class: kind }) =>
          h("th", { scope: "col", role: "columnheader", class: kind }, title || h("span", { class: "unseen" }, "Action")),
        ),
      ),
    ),
    h(
      "tbody",
      { role: "rowgroup" },
      rows.map((row) => h("tr", { role: "row", key: keyOf(row) }, columns.map(cell(row)))),
    ),
  );
}

/** Facts with their names. */
export function facts(pairs) {
  return h(
    "dl",
    { class: "facts" },
    pairs.filter(Boolean).map(([term, ...told]) => h("div", { key: term }, h("dt", null, term), h("dd", null, told))),
  );
}

const STATES = {
  flowing: ["well", "flowing"],
  ramping: ["trouble", "speeding up"],
  probing: ["trouble", "probing"],
  backoff: ["trouble", "waiting"],
  paused: ["trouble", "paused"],
};

/** The state of a controller, of a topic or a sink. */
export function controller(backoff) {
  const [health, text] = STATES[backoff.state] ?? ["trouble", backoff.state];
  return state(health, text);
}

export function probe(backoff, nowMs) {
  return backoff.next_probe_ms === null ? h("span", { class: "quiet" }, "–") : instant(backoff.next_probe_ms, nowMs);
}
