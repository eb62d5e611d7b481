import { PgBoss } from "pg-boss";

import { batches, lap, main, stopped } from "./program.mjs";

const QUEUE = "nothing";
const boss = new PgBoss({
  host: process.env.PGHOST,
  user: process.env.PGUSER,
  database: process.env.PGDATABASE,
  supervise: false,
  schedule: false,
});
boss.on("error", console.error);
await boss.start();

await main({
  prepare: () => boss.createQueue(QUEUE),
  async fill(count) {
    for (const numbers of batches(count)) {
      await boss.insert(QUEUE, numbers.map((number) => ({ data: { number } })));
    }
  },
  async enqueue(count) {
    for (let number = 0; number < count; number += 1) await boss.send(QUEUE, { number });
  },
  async drain() {
    await boss.work(QUEUE, JSON.parse(process.env.BENCHMARK_OPTIONS), async (jobs) => jobs.forEach(lap));
    await stopped;
  },
  close: () => boss.stop(),
});
