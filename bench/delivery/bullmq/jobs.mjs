// BullMQ's side of bench/delivery.
//   node jobs.mjs fill REDIS_PORT COUNT BODY_FILE   adds COUNT jobs with that body, and ends
//   node jobs.mjs work REDIS_PORT CONCURRENCY [URL] works until TERM: does nothing, or posts the body to URL with undici
// Jobs are removed when they are done: a queue that keeps them costs Redis more.
import { readFileSync } from "node:fs";
import { Queue, Worker } from "bullmq";
import { Pool } from "undici";

const NAME = "bench";
const BATCH = 1000;
const [what, port, number, last] = process.argv.slice(2);
const connection = { host: "127.0.0.1", port: Number(port), maxRetriesPerRequest: null };

async function fill(count, body) {
  const queue = new Queue(NAME, { connection, defaultJobOptions: { removeOnComplete: true } });
  for (let first = 0; first < count; first += BATCH) {
    const jobs = [];
    for (let job = first; job < Math.min(first + BATCH, count); job++) jobs.push({ name: "digest", data: { body } });
    await queue.addBulk(jobs);
  }
  await queue.close();
}

function poster(url, concurrency) {
  const { origin, pathname } = new URL(url);
  const pool = new Pool(origin, { connections: concurrency });
  return async (job) => {
    const answer = await pool.request({
      method: "POST",
      path: pathname,
      body: job.data.body,
      headers: {
        "content-type": "application/json",
        "user-agent": "bullmq/5",
        "webhook-id": `bull-${job.id.padStart(32, "0")}`,
        "webhook-timestamp": String(Math.floor(Date.now() / 1000)),
        "nsqdigest-attempt": String(job.attemptsMade + 1),
      },
    });
    await answer.body.dump();
    if (answer.statusCode >= 300) throw new Error(`the receiver returned ${answer.statusCode}`);
  };
}

function work(concurrency, url) {
  const worker = new Worker(NAME, url ? poster(url, concurrency) : async () => {}, { connection, concurrency });
  worker.on("failed", (job, error) => console.error(job?.id, error));
  worker.on("error", (error) => console.error(error));
  process.on("SIGTERM", () => worker.close().then(() => process.exit(0)));
}

if (what === "fill") await fill(Number(number), readFileSync(last, "utf8"));
else work(Number(number), last);
