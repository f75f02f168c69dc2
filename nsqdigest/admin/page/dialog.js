// What changes something is asked once more; here the token is typed, too.

import { h, patch } from "./dom.js";
import * as source from "./source.js";
import { count, counted, visible } from "./words.js";

const dialog = document.getElementById("dialog");
let asked = null; // {title, about, verb, run}
let told = { text: "", isBusy: false };

/** `onChange`: something was changed, or the token was. Returns what the views may do. */
export function actions(isPossible, onChange) {
  const begin = (title, about, verb, run) => open({ title, about, verb, run: () => run().then(onChange) });
  return {
    isPossible,
    pause(kind, name, pauses) {
      const body = { kind, name };
      if (!pauses) return begin(`Resume ${kind} ${visible(name)}?`, "It goes on at once.", "Resume", () => source.post("api/resume", body));
      return begin(`Pause ${kind} ${visible(name)}?`, `${PAUSED[kind]} until somebody resumes it, or this daemon ends. Other daemons go on.`, "Pause", () => source.post("api/pause", body));
    },
    flush({ route, timeline, shown, digest_id: digest, is_revived: isRevived }) {
      const body = { route, timeline, digest: isRevived ? digest : "" };
      return begin(
        `Deliver ${visible(shown)} now?`,
        "Its digest goes out at once, whatever its policy, its quiet hours or a retry says. A paused or refusing sink still holds it back.",
        "Deliver now",
        async () => {
          const { state } = await source.post("api/flush", body);
          if (state === "idle") throw new source.Refusal(200, "There is nothing to deliver: it got nothing new since its last digest");
        },
      );
    },
    replay(ids) {
      const about = "It is due at once, with the same id and records. A digest that fails again is dead again.";
      return begin(`Send ${counted(ids.length, "dead digest")} again?`, about, "Send again", async () => {
        const { digests } = await source.post("api/dead/replay", { ids });
        const left = digests.filter(({ result }) => result !== "replayed" && result !== "already");
        if (left.length) throw new source.Refusal(200, `${count(left.length)} of them stay: ${RESULTS[left[0].result] ?? left[0].result}`);
      });
    },
    unlock() {
      return begin("Enter the token", "It is admin.token of the daemon's file, or its reading token. This page keeps it until it is closed, and nowhere else.", "Enter", async () => {});
    },
  };
}

const PAUSED = {
  topic: "Nothing of it is read",
  route: "Nothing of it goes out",
  sink: "Nothing is sent to it",
};
const RESULTS = {
  unknown: "no such digest is dead any more",
  orphan: "the file does not have their route",
  "values-lost": "Redis lost their records",
};

function open(question) {
  asked = question;
  told = { text: "", isBusy: false };
  show();
  if (!dialog.open) dialog.showModal();
  dialog.querySelector("input, button.main")?.focus();
}

function show() {
  patch(
    dialog,
    h(
      "form",
      { method: "dialog", on: { submit } },
      h("h2", { id: "dialog-title" }, asked.title),
      h("p", null, asked.about),
      !source.hasToken() &&
        h("label", null, "Token (admin.token)", h("input", { name: "token", type: "password", autocomplete: "off", spellcheck: "false", "aria-describedby": "dialog-told", first: { value: "" } })),
      h("p", { id: "dialog-told", class: "wrong", role: "alert" }, told.text),
      h(
        "div",
        { class: "buttons" },
        h("button", { type: "button", on: { click: () => dialog.close() } }, "Cancel"),
        h("button", { type: "submit", class: "main", disabled: told.isBusy }, told.isBusy ? "Wait …" : asked.verb),
      ),
    ),
  );
}

async function submit(event) {
  event.preventDefault();
  if (told.isBusy) return;
  const input = dialog.querySelector("input");
  const token = input?.value ?? "";
  told = { text: "", isBusy: true };
  show();
  try {
    if (token) await source.enter(token);
    await asked.run();
    if (input) input.value = "";
    dialog.close();
  } catch (error) {
    if (error instanceof source.Refusal && error.status === 401) source.forget();
    told = { text: wrong(error, token), isBusy: false };
    show();
    dialog.querySelector("input")?.select();
  }
}

function wrong(error, token) {
  if (!(error instanceof source.Refusal)) return "The daemon does not answer; nothing may have changed. Try again.";
  if (error.status === 401) return token ? "This token is wrong. It is the value of admin.token in the daemon's file, or of its reading token." : "This needs the token.";
  return visible(error.message);
}
