// What http.mjs uses of node:test, for browsers.
const tests = [];

export default function test(name, body) {
  tests.push([name, body]);
}

/** Run all tests, one after the other; return how many passed, and what the others said. */
export async function run() {
  const failed = [];
  for (const [name, body] of tests) {
    try {
      await body();
    } catch (error) {
      failed.push(`${name}: ${error?.stack ?? error}`);
    }
  }
  return { passed: tests.length - failed.length, failed };
}
