import { Logger, makeWorkerUtils, run } from "graphile-worker";

import { batches, lap, main, stopped } from "./program.mjs";

const logger = new Logger(() => (level, message) => level === "error" && console.error(message));
const worker = { logger, ...JSON.parse(process.env.BENCHMARK_OPTIONS) };
const utils = await makeWorkerUtils({ preset: { worker } });

await main({
  prepare: () => utils.migrate(),
  async fill(count) {
    for (const numbers of batches(count)) {
      await utils.addJobs(numbers.map((number) => ({ identifier: "nothing", payload: { number } })));
    }
  },
  async enqueue(count) {
    for (let number = 0; number < count; number += 1) await utils.addJob("nothing", { number });
  },
  async drain() {
    const taskList = { nothing: async () => lap() };
    const runner = await run({ taskList, noHandleSignals: true, preset: { worker } });
    await stopped;
    await runner.stop();
  },
  close: () => utils.release(),
});
