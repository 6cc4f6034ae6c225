// What http.mjs uses of node:assert/strict, for browsers.
function fail(message) {
  throw new Error(message ?? "failed");
}

/** Return a value as text that is equal for equal values. */
function shown(value) {
  return JSON.stringify(value, (_, each) => {
    if (each === undefined) return "undefined";
    const plain = each !== null && typeof each === "object" && !Array.isArray(each);
    return plain ? Object.fromEntries(Object.entries(each).sort(([a], [b]) => (a < b ? -1 : 1))) : each;
  });
}

const ok = (value, message) => value || fail(message ?? `not true: ${value}`);
const equal = (value, expected, message) => Object.is(value, expected) || fail(`${message ?? ""} ${value} is not ${expected}`);
const deepEqual = (value, expected) => shown(value) === shown(expected) || fail(`${shown(value)} is not ${shown(expected)}`);

async function rejects(promise, expected) {
  let error;
  try {
    await promise;
  } catch (found) {
    error = found;
  }
  if (!error) fail("no error");
  if (typeof expected === "function") ok(error instanceof expected, `${error} has another type`);
  else for (const [name, value] of Object.entries(expected)) deepEqual({ [name]: error[name] }, { [name]: value });
}

export default { ok, equal, deepEqual, rejects, fail };
