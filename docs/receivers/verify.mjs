// Verifies posts of nsqdigest by the rules of Standard Webhooks. Node.js 18 or newer, nothing to install.
//
// In a receiver: verify(secrets, request.headers, body), before anything else looks at the body. To try a post that you
// saved:
//
//     HOOK_SECRET=whsec_… node verify.mjs WEBHOOK-ID WEBHOOK-TIMESTAMP WEBHOOK-SIGNATURE < body

import { createHmac, timingSafeEqual } from "node:crypto";
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const TOLERANCE_S = 300;

// Answer 401 and do nothing else: nsqdigest tries again, so a wrong secret can still be corrected.
export class NotVerified extends Error {}

// Returns the digest's id, or throws NotVerified.
//
// secrets: each "whsec_…" that is valid now. headers: an object with names in lower case, as request.headers is. body: a
// Buffer of the bytes as they came; JSON that was parsed and written again has other bytes.
export function verify(secrets, headers, body, nowS = Date.now() / 1000) {
  const { "webhook-id": id, "webhook-timestamp": timestamp, "webhook-signature": signatures } = headers;
  if (!id || !timestamp || !signatures) throw new NotVerified("a header is missing");
  if (!/^[0-9]{1,12}$/.test(timestamp)) throw new NotVerified("webhook-timestamp is not a number of seconds");
  if (Math.abs(nowS - Number(timestamp)) > TOLERANCE_S) {
    throw new NotVerified("webhook-timestamp is too far from this clock");
  }
  const expected = secrets.map(keyOf).map((key) => {
    const signature = createHmac("sha256", key).update(`${id}.${timestamp}.`).update(body).digest("base64");
    return Buffer.from(`v1,${signature}`);
  });
  for (const signature of signatures.split(" ")) {
    // Of other versions than v1 this file knows nothing: they neither help nor harm.
    const sent = Buffer.from(signature);
    if (expected.some((each) => each.length === sent.length && timingSafeEqual(each, sent))) return id;
  }
  throw new NotVerified("no signature was made with a secret that is known here");
}

function keyOf(secret) {
  const encoded = secret.replace(/^whsec_/, "");
  const key = Buffer.from(encoded, "base64");
  // Node.js skips what is no base64, and with an empty key everybody could sign.
  if (encoded === secret || key.length < 24 || key.toString("base64") !== encoded) {
    throw new Error("a secret is whsec_ and the base64 of 24 to 64 bytes");
  }
  return key;
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  const [id, timestamp, signature] = process.argv.slice(2);
  const headers = { "webhook-id": id, "webhook-timestamp": timestamp, "webhook-signature": signature };
  const secrets = (process.env.HOOK_SECRET ?? "").split(/\s+/).filter(Boolean);
  try {
    console.log("verified:", verify(secrets, headers, readFileSync(0)));
  } catch (error) {
    console.error(error instanceof NotVerified ? `not verified: ${error.message}` : error.message);
    process.exitCode = 1;
  }
}
