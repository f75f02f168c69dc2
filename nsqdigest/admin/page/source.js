// The daemon, asked over HTTP. The token is kept here and nowhere else: it is gone when the page is closed.

const WITHIN_MS = 10_000;

/** The daemon answered, and not with what was asked for. Any other error means that nobody answered. */
export class Refusal extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

let token = "";

export function hasToken() {
  return token !== "";
}

/** Takes a token if the daemon does. Raises Refusal where it is wrong. */
export async function enter(text) {
  await ask("GET", "api/status", undefined, text);
  token = text;
}

export function forget() {
  token = "";
}

export function get(path) {
  return ask("GET", path, undefined, token);
}

export function post(path, body) {
  return ask("POST", path, body, token);
}

async function ask(method, path, body, bearer) {
  const headers = {};
  if (bearer) headers.authorization = `Bearer ${bearer}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  const answer = await fetch(path, {
    method,
    headers,
    body: body === undefined ? undefined : JSON.stringify(body),
    cache: "no-store",
    credentials: "omit",
    redirect: "error",
    signal: AbortSignal.timeout(WITHIN_MS),
  });
  const told = await answer.json().catch(() => null);
  if (answer.ok && told !== null) return told;
  throw new Refusal(answer.status, told?.error ?? `the answer is ${answer.status}, and not of nsqdigest`);
}
