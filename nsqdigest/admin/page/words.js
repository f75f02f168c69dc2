// Numbers, instants and names in words. What others sent is shown as it is, with everything that cannot be seen, or
// that would move the text around it, made visible.

import { h } from "./dom.js";

// Controls, marks that reorder text, separators, blanks other than U+0020, halves of characters, what has no shape.
const UNSEEN =
  /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]|(?! )\p{Zs}|[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u2d7f\u3164\ufe00-\ufe0f\uffa0\u{e0100}-\u{e01ef}]/gu;

const MAY_SCROLL = 150; // characters, on a phone; what scrolls can be reached by the keyboard

function escaped(character) {
  const code = character.codePointAt(0);
  return code < 0x10000 ? `\\u${code.toString(16).padStart(4, "0")}` : `\\u{${code.toString(16)}}`;
}

export function visible(text) {
  return String(text).replace(UNSEEN, escaped);
}

/** A name as others gave it. */
export function name(text) {
  return h("bdi", { class: "name" }, visible(text) || "\u201c\u201d");
}

/** A sentence that others may have put names into. */
export function said(text) {
  return h("bdi", null, visible(text));
}

/** Text of several lines. */
export function block(text) {
  const shown = String(text).split("\n").map(visible).join("\n");
  const scrolls = shown.length > MAY_SCROLL ? { tabindex: 0, role: "group", "aria-label": "Event" } : {};
  return h("pre", { class: "block", dir: "ltr", ...scrolls }, h("bdi", null, shown));
}

export function count(number) {
  return Math.round(number).toLocaleString("en");
}

export function counted(number, what) {
  return `${count(number)} ${what}${Math.round(number) === 1 ? "" : "s"}`;
}

/** Three figures are enough for the eye. */
export function figure(number) {
  if (number === 0) return "0";
  if (number >= 100) return count(number);
  if (number >= 10) return number.toFixed(1);
  return number >= 0.01 ? number.toFixed(2) : "< 0.01";
}

export function rate(perSecond) {
  return `${figure(perSecond)}/s`;
}

export function duration(seconds) {
  if (seconds < 0.0005) return "0 s";
  if (seconds < 1) return `${Math.max(1, Math.round(seconds * 1000))} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return parts(Math.floor(whole / 60), "min", whole % 60, "s");
  if (whole < 86_400) return parts(Math.floor(whole / 3600), "h", Math.floor((whole % 3600) / 60), "min");
  return parts(Math.floor(whole / 86_400), "d", Math.floor((whole % 86_400) / 3600), "h");
}

function parts(large, unit, small, smallUnit) {
  return small ? `${large} ${unit} ${small} ${smallUnit}` : `${large} ${unit}`;
}

function utc(ms) {
  return new Date(ms).toISOString().replace("T", " ").replace("Z", " UTC");
}

export function clock(ms) {
  return `${new Date(ms).toISOString().slice(11, 19)} UTC`;
}

/** When something happened or will, seen from now: `in 4 s`, `12 s ago`. */
export function instant(ms, nowMs) {
  const date = new Date(ms);
  if (ms === null || ms === undefined || Number.isNaN(date.getTime())) return h("span", { class: "quiet" }, "–");
  const seconds = (ms - nowMs) / 1000;
  const text =
    Math.abs(seconds) < 0.5 ? "now" : seconds > 0 ? `in ${whole(seconds)}` : `${whole(-seconds)} ago`;
  return h("time", { datetime: date.toISOString(), title: utc(ms) }, text);
}

function whole(seconds) {
  return duration(seconds < 60 ? Math.max(1, Math.round(seconds)) : seconds).replace(".0 s", " s");
}

/** An instant of the clock; with the date where it is not today's. */
export function stamp(ms, nowMs) {
  const text = utc(ms);
  const isToday = text.slice(0, 10) === utc(nowMs).slice(0, 10);
  return h("time", { datetime: new Date(ms).toISOString(), title: text }, isToday ? text.slice(11, 19) : text.slice(0, 19));
}
