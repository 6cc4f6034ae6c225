// Format numbers, sizes, durations and names for people.

export function count(n) {
  if (n === null || n === undefined) return "–";
  if (n > 0 && n < 10 && n % 1) return n < 0.1 ? "< 0.1" : n.toFixed(1);
  if (n < 100000) return Math.round(n).toLocaleString("en");
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (n >= size) return (n / size).toPrecision(3) + " " + unit;
  }
  return String(n);
}

export function whole(n) { return n === null || n === undefined ? "–" : n.toLocaleString("en"); }

export function bytes(n) {
  if (n === null || n === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (n >= 1023.5 && unit < units.length - 1) { n /= 1024; unit += 1; }
  return (unit && n < 99.95 ? n.toFixed(1) : Math.round(n)) + " " + units[unit];
}

export function seconds(n) {
  if (n === null || n === undefined) return "–";
  if (n < 0.001) return Math.round(n * 1e6) + " µs";
  if (n < 1) return Number((n * 1e3).toPrecision(3)) + " ms";
  return n < 100 ? Number(n.toPrecision(3)) + " s" : age(n);
}

// A duration that is at most n: the server counts durations by ranges, of which only the upper bounds are known.
export function within(n) { return n === null || n === undefined ? "–" : "≤ " + seconds(n); }

// A duration in its largest unit, with the next one while the first is small.
export function age(n) {
  if (n === null || n === undefined) return "–";
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const at = units.findIndex(([, size]) => n >= size);
  if (at < 0) return "now";
  const [unit, size] = units[at];
  const first = Math.floor(n / size);
  if (first >= 10 || at >= 2) return `${first.toLocaleString("en")} ${unit}`;
  const [lower, small] = units[at + 1];
  const second = Math.floor((n - first * size) / small);
  return second ? `${first} ${unit} ${second} ${lower}` : `${first} ${unit}`;
}

export function ago(n) { return n < 1 ? "now" : `${age(n)} ago`; }

/** A time that was computed from the rate of the last hour: beyond a year the number of days would mean nothing. */
export function forecast(n) {
  return n > 365 * 86400 ? "more than a year" : age(n);
}

export function clock(time, span) {
  const date = new Date(time * 1000);
  const two = (n) => String(n).padStart(2, "0");
  const text = `${two(date.getHours())}:${two(date.getMinutes())}`;
  return span === "5min" ? `${text}:${two(date.getSeconds())}` : text;
}

// Replace invisible characters, and those that change the direction of text, by their code points.
export function visible(name) {
  return name.replace(/[\p{C}\p{Zl}\p{Zp}]|^\s|\s$/gu, (sign) => `\\u{${sign.codePointAt(0).toString(16)}}`);
}

export function plural(n, one, many = one + "s") { return `${count(n)} ${n === 1 ? one : many}`; }
