// What the contenders on Node.js share: the stopwatch, and the verbs of the command line.
//
// It times a run from the first call of the task to the last. With BENCHMARK_TALLY it counts in a file of that folder
// instead, for a runner that adds several processes up, and stops at SIGTERM.
import { openSync, writeFileSync, writeSync } from "node:fs";
import { join } from "node:path";

const LAPS = Number(process.env.BENCHMARK_LAPS ?? 0);
const tally = process.env.BENCHMARK_TALLY && openSync(join(process.env.BENCHMARK_TALLY, String(process.pid)), "w");
let stop;
let count = 0;
let first;
let last;

/** Resolved at the last call. */
export const stopped = new Promise((resolve) => {
  stop = resolve;
});
if (tally) {
  process.on("SIGTERM", stop);
  setInterval(record, 20).unref();
}

/** The body of the task. */
export function lap() {
  count += 1;
  last = performance.now();
  if (count === 1) first = last;
  if (!tally && count === LAPS) {
    writeFileSync(process.env.BENCHMARK_RESULT, JSON.stringify((last - first) / 1000));
    stop();
  }
}

/** Writes the count and the times of the first and the last call, in nanoseconds. */
function record() {
  if (count === 0) return;
  const nanoseconds = (moment) => BigInt(Math.round((performance.timeOrigin + moment) * 1e6));
  writeSync(tally, new BigInt64Array([BigInt(count), nanoseconds(first), nanoseconds(last)]), 0, 24, 0);
}

/** Slices of 10,000 numbers each, from 0 to `count`. */
export function* batches(count) {
  for (let start = 0; start < count; start += 10_000) {
    yield Array.from({ length: Math.min(10_000, count - start) }, (_, index) => start + index);
  }
}

/** Runs the verb that the command line names, and prints the seconds it took. `verbs.close` ends the process. */
export async function main(verbs) {
  const [verb, number] = process.argv.slice(2);
  if (process.env.BENCHMARK_WARM) await verbs.enqueue(1); // keeps the connection out of the measurement
  const began = performance.now();
  await verbs[verb](Number(number ?? 0));
  console.log((performance.now() - began) / 1000);
  await verbs.close();
}
