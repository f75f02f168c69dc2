// The page: which view is shown, and when the daemon is asked again.
//
// It asks often while somebody looks, seldom while nobody does, and ever less while nobody answers. What was read last
// stays on the page, with the time it is from.

import * as dead from "./dead.js";
import * as deliveries from "./deliveries.js";
import { actions } from "./dialog.js";
import { h, patch } from "./dom.js";
import * as overview from "./overview.js";
import { empty, notice, panel, sign } from "./parts.js";
import * as source from "./source.js";
import * as timeline from "./timeline.js";
import * as timelines from "./timelines.js";
import { clock, count, counted, duration, said, stamp, visible } from "./words.js";

const VIEWS = { "": overview, timelines, timeline, deliveries, dead };
const HEALTHS = ["well", "trouble", "failing", "draining", "away"];
const STATUS_EVERY_S = 2;
const HIDDEN_EVERY_S = 20;
const FIRST_RETRY_S = 1;
const LONGEST_RETRY_S = 15;
const GUESSED_TOO_OFTEN_S = 60;
const BUSY = 429;
const STALE_AFTER_S = 8;

const elements = Object.fromEntries(["top", "main", "bottom", "announcer", "icon"].map((id) => [id, document.getElementById(id)]));

let status = null;
let offsetMs = 0; // of the daemon's clock to ours
let answeredMs = null; // by our clock
let trouble = null; // {text, isAway, isLocked, sinceMs}
let failures = 0;
let nextTryMs = 0;
let answers = new Map(); // path → {value, atMs, error}
let isAsking = false;
let asksAgain = false;
let timer = null;

// -- which view

function place() {
  const [path, search] = location.hash.replace(/^#\/?/, "").split("?");
  const [first, ...parts] = path.split("/");
  let decoded;
  try {
    decoded = parts.map(decodeURIComponent);
  } catch {
    decoded = [];
  }
  const isKnown = Object.hasOwn(VIEWS, first) && (first !== "timeline" || decoded.length === 2);
  return { first: isKnown ? first : "", view: VIEWS[isKnown ? first : ""], parts: decoded, query: new URLSearchParams(search ?? "") };
}

function go(hash, { replace }) {
  if (replace) {
    history.replaceState(null, "", hash);
    arrive(false);
  } else location.hash = hash;
}

function arrive(isNew = true) {
  const wanted = new Set(Object.values(here().paths).map(({ path }) => path));
  answers = new Map([...answers].filter(([path]) => wanted.has(path)));
  render();
  if (isNew) {
    scrollTo(0, 0);
    elements.main.focus({ preventScroll: true });
  }
  ask();
}

function here() {
  const at = place();
  return { ...at, paths: at.view.paths(at.query, at.parts) };
}

// -- asking

async function ask() {
  if (isAsking) {
    asksAgain = true;
    return;
  }
  isAsking = true;
  clearTimeout(timer);
  try {
    const now = await source.get("api/status");
    if (status && now.version !== status.version) location.reload(); // the page of the version before may not fit
    offsetMs = now.now_ms - Date.now();
    status = now;
    answeredMs = Date.now();
    trouble = null;
    failures = 0;
    await askForView();
  } catch (error) {
    failed(error);
  }
  isAsking = false;
  plan();
  render();
  announce();
}

async function askForView() {
  const due = Object.values(here().paths).filter(({ path, everyS }) => {
    const had = answers.get(path);
    return !had || Date.now() - had.atMs >= everyS * 1000 - 200;
  });
  await Promise.all(
    due.map(async ({ path }) => {
      const had = answers.get(path);
      try {
        answers.set(path, { value: await source.get(path), atMs: Date.now(), error: "" });
      } catch (error) {
        if (!(error instanceof source.Refusal)) throw error;
        if (error.status === 401) throw error;
        if (error.status === BUSY && had) return;
        answers.set(path, { value: error.status === 404 ? null : had?.value, atMs: Date.now(), error: error.message });
      }
    }),
  );
}

function failed(error) {
  failures += 1;
  const isLocked = error instanceof source.Refusal && [401, 403, 429].includes(error.status);
  if (isLocked) source.forget();
  trouble = {
    isLocked,
    text: error instanceof source.Refusal ? visible(error.message) : "",
    sinceMs: trouble?.sinceMs ?? Date.now(),
    status: error.status,
  };
}

function plan() {
  let waitS = STATUS_EVERY_S;
  if (trouble?.isLocked) waitS = GUESSED_TOO_OFTEN_S;
  else if (trouble) waitS = Math.min(LONGEST_RETRY_S, FIRST_RETRY_S * 2 ** Math.min(failures - 1, 10));
  else if (document.hidden) waitS = HIDDEN_EVERY_S;
  if (asksAgain) waitS = 0;
  asksAgain = false;
  nextTryMs = Date.now() + waitS * 1000;
  clearTimeout(timer);
  timer = setTimeout(ask, waitS * 1000);
}

// -- showing

const act = () => actions(Boolean(status?.has_token), ask);

function health() {
  if (trouble || !status) return "away";
  return status.health;
}

function iconOf(now) {
  return `page/icon-${now}.svg`;
}

function verdict() {
  if (trouble?.isLocked) return trouble.status === 403 ? "The daemon refuses to show this" : "This needs the token";
  if (trouble) return trouble.status ? "The daemon cannot say how it is" : "The daemon does not answer";
  return status ? visible(status.verdict) : "Asking the daemon …";
}

function render() {
  const at = here();
  const nowMs = Date.now() + offsetMs;
  const title = `${sign(health())} ${verdict()} \u2013 nsqdigest`;
  if (document.title !== title) document.title = title;
  const icon = iconOf(health());
  if (elements.icon.getAttribute("href") !== icon) elements.icon.setAttribute("href", icon);
  document.documentElement.dataset.health = health();
  patch(elements.top, top(at), banner(nowMs));
  patch(elements.main, content(at, nowMs));
  patch(elements.bottom, bottom(nowMs));
}

function top(at) {
  const to = (view, text, number) =>
    h(
      "a",
      { href: `#/${view}`, key: view, "aria-current": at.first === view || (view === "timelines" && at.first === "timeline") ? "page" : null },
      text,
      number > 0 && h("span", { class: "number" }, " ", count(number)),
    );
  return h(
    "div",
    { class: "bar" },
    h("a", { class: "brand", href: "#/" }, "nsqdigest"),
    h(
      "nav",
      { "aria-label": "Views" },
      to("", "Overview", 0),
      to("timelines", "Timelines", status?.timelines ?? 0),
      to("deliveries", "Deliveries", 0),
      to("dead", "Dead", status?.dead_digests ?? 0),
    ),
    h("p", { class: "access" }, access()),
  );
}

function access() {
  if (!status || trouble) return null;
  if (!status.has_token) return h("span", { class: "quiet", title: "admin.token is not set in the file" }, "read only");
  if (source.hasToken()) {
    return h("button", { type: "button", key: "lock", on: { click: () => { source.forget(); render(); } } }, "Forget the token");
  }
  return h("button", { type: "button", key: "unlock", on: { click: () => act().unlock() } }, "Enter the token");
}

function banner(nowMs) {
  return h(
    "div",
    { class: `banner ${health()}` },
    h("img", { src: iconOf(health()), alt: "", width: 40, height: 40 }),
    h("div", null, h("h1", { id: "verdict" }, verdict()), h("p", { class: "sub" }, sub(nowMs))),
  );
}

function sub(nowMs) {
  if (trouble && !trouble.isLocked) {
    const triesIn = Math.max(0, (nextTryMs - Date.now()) / 1000);
    return [
      `Since ${clock(trouble.sinceMs + offsetMs)}. `,
      trouble.text && `It answers: ${trouble.text}. `,
      isAsking || triesIn < 1 ? "Asking now." : `Asks again in ${counted(triesIn, "second")}.`,
      answeredMs !== null && [h("br"), `What stands below is from ${clock(answeredMs + offsetMs)}.`],
    ];
  }
  if (!status || trouble) return trouble?.status === 403 ? trouble.text : null;
  const parts = [
    h("span", null, health()),
    h("span", null, "up ", duration((nowMs - status.started_ms) / 1000)),
    h("span", null, said(status.config)),
    status.reloaded_ms !== null && h("span", null, "reloaded ", stamp(status.reloaded_ms, nowMs)),
    h("span", null, "version ", said(status.version)),
  ];
  return parts.filter(Boolean);
}

function content(at, nowMs) {
  if (trouble?.isLocked) return locked();
  if (!status) return empty(trouble ? "Nothing was read yet." : "");
  const data = Object.fromEntries(Object.entries(at.paths).map(([key, { path }]) => [key, answers.get(path)?.value]));
  const errors = Object.values(at.paths).map(({ path }) => answers.get(path)).filter((each) => each?.error);
  const told = errors.map(({ error, value }) => notice("failing", visible(error), value ? " What stands below is older." : ""));
  if (errors.length && errors.every(({ value }) => !value)) return panel(at.view.title, null, told);
  return [told, at.view.render({ status, data, nowMs: nowOf(at, nowMs), act: act(), go, query: at.query, parts: at.parts })];
}

/** Now by the clock of the answer that is shown: what stands in Redis has the instants of Redis' clock. */
function nowOf(at, nowMs) {
  const answer = Object.values(at.paths).map(({ path }) => answers.get(path)).find((each) => each?.value);
  return answer ? answer.value.now_ms + Date.now() - answer.atMs : nowMs;
}

function locked() {
  if (trouble.status === 403) return panel("Not shown", null, h("p", null, trouble.text));
  return panel(
    "Locked",
    null,
    h("p", null, "The page shows what events contain, so reading needs a token, too: admin.token of the daemon's file, or its reading token."),
    trouble.status === 429 && notice("failing", trouble.text),
    h("p", null, h("button", { type: "button", class: "main", on: { click: () => actions(true, ask).unlock() } }, "Enter the token")),
  );
}

function bottom(nowMs) {
  if (!status) return null;
  const ageS = answeredMs === null ? 0 : (Date.now() - answeredMs) / 1000;
  return [
    h("p", null, trouble || ageS > STALE_AFTER_S ? `As of ${clock(answeredMs + offsetMs)}` : `Live, ${clock(nowMs)}`),
    h("p", null, "Settings ", h("code", null, status.config_hash)),
    !status.has_token &&
      h("p", null, "Read only: to pause, deliver or send again from here, write ", h("code", null, 'token = "env:NSQDIGEST_TOKEN"'), " under ", h("code", null, "[admin]"), " in the file, and reload or restart the daemon."),
  ];
}

/** Read aloud by a screen reader: only when the state changes, not with each number in the sentence. */
let announced = "";
function announce() {
  const now = health() + (trouble?.status ?? "");
  if (now === announced) return;
  announced = now;
  elements.announcer.textContent = `${health()}: ${verdict()}`;
}

addEventListener("hashchange", () => arrive());
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) ask();
});
setInterval(() => {
  if (!document.hidden) render();
}, 1000);
for (const each of HEALTHS) new Image().src = iconOf(each); // while the daemon is there to be asked
render();
ask();
