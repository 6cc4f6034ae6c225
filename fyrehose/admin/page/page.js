// The page of a Fyrehose server.  Everything that comes from peers - names of streams, addresses, payloads - is set as
// text and never as markup.
"use strict";

const SPAN = 300; // seconds that the charts show
const KEPT = 500; // messages that the tail keeps
const $ = (id) => document.getElementById(id);
const state = { samples: [], hidden: new Set(), names: [], tail: null, stream: "", form: "text", paused: false, kept: [] };

// Numbers for people.

function count(n) {
  if (n === null || n === undefined) return "–";
  if (n < 10 && n % 1) return n.toFixed(1);
  if (n < 100000) return Math.round(n).toLocaleString("en");
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (n >= size) return (n / size).toPrecision(3) + unit;
  }
  return String(n);
}

function bytes(n) {
  if (n === null || n === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) { n /= 1024; unit += 1; }
  return (unit && n < 100 ? n.toPrecision(3) : Math.round(n)) + " " + units[unit];
}

function seconds(n) {
  if (n === null || n === undefined) return "–";
  if (n < 0.001) return Math.round(n * 1e6) + " µs";
  if (n < 1) return Number((n * 1e3).toPrecision(3)) + " ms";
  return Number(n.toPrecision(3)) + " s";
}

function within(n) { return n === null || n === undefined ? "–" : "≤ " + seconds(n); }

function since(n) {
  const days = Math.floor(n / 86400), hours = Math.floor(n / 3600) % 24, minutes = Math.floor(n / 60) % 60;
  if (days) return `up ${days} d ${hours} h`;
  if (hours) return `up ${hours} h ${minutes} min`;
  return minutes ? `up ${minutes} min` : `up ${Math.floor(n)} s`;
}

// Small things of the document.

function set(id, text) { if ($(id).textContent !== text) $(id).textContent = text; }

function make(tag, text, kind) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function colour(name) {
  const at = state.names.indexOf(name);
  return getComputedStyle(document.documentElement).getPropertyValue("--c" + (at < 0 ? 7 : at % 8)).trim();
}

// A table's rows, each a list of cells: text, or [text, class], or an element.  Rows that are there are used again, so
// that what somebody has focused or selected stays.
function fill(id, rows) {
  const body = $(id).tBodies[0];
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((cells, r) => {
    const row = body.rows[r] || body.insertRow();
    cells.forEach((cell, c) => {
      const at = row.cells[c] || row.insertCell();
      if (cell instanceof Node) {
        if (!at.firstChild || !at.firstChild.isEqualNode(cell)) at.replaceChildren(cell);
        return;
      }
      const [text, kind] = Array.isArray(cell) ? cell : [cell, ""];
      if (at.textContent !== text) at.textContent = text;
      if (at.className !== kind) at.className = kind;
      if (c === 0) at.title = text;
    });
  });
  $(id).hidden = !rows.length;
  const empty = $(id).closest("section").querySelector(".empty");
  if (empty) empty.hidden = rows.length > 0;
}

// Charts: what each protocol did, one upon the other.

class Chart {
  constructor(id, side) {
    this.canvas = $(id);
    this.side = side;
    this.at = null;
    this.canvas.addEventListener("pointermove", (event) => { this.at = event.offsetX; this.draw(); });
    this.canvas.addEventListener("pointerleave", () => { this.at = null; this.draw(); });
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  draw() {
    const width = this.canvas.clientWidth, height = this.canvas.clientHeight, scale = window.devicePixelRatio || 1;
    if (!width) return;
    if (this.canvas.width !== Math.round(width * scale) || this.canvas.height !== Math.round(height * scale)) {
      this.canvas.width = Math.round(width * scale);
      this.canvas.height = Math.round(height * scale);
    }
    const pen = this.canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    const style = getComputedStyle(document.documentElement);
    const ink = style.getPropertyValue("--dim").trim(), line = style.getPropertyValue("--line").trim();
    const samples = state.samples, side = this.side;
    const names = state.names.filter((name) => samples.some((each) => each[side][name] && each[side][name][0] > 0));
    const total = (each) => names.reduce((sum, name) => sum + ((each[side][name] || [0])[0]), 0);
    const most = nice(Math.max(1, ...samples.map(total)));
    const left = 46, right = 8, top = 24, bottom = 20;
    const last = samples.length ? samples[samples.length - 1].time : 0;
    const x = (time) => width - right - (last - time) / SPAN * (width - left - right);
    const y = (value) => height - bottom - value / most * (height - top - bottom);

    pen.font = "11px system-ui, sans-serif";
    pen.lineWidth = 1;
    for (let i = 0; i <= 4; i += 1) {
      const value = most * i / 4;
      pen.strokeStyle = line;
      pen.beginPath(); pen.moveTo(left, Math.round(y(value)) + .5); pen.lineTo(width - right, Math.round(y(value)) + .5); pen.stroke();
      pen.fillStyle = ink; pen.textAlign = "right";
      pen.fillText(count(value), left - 6, y(value) + 4);
    }
    for (let minute = 0; minute <= SPAN / 60; minute += 1) {
      pen.textAlign = minute ? "center" : "right";
      pen.fillText(minute ? `-${minute} min` : "now", minute ? x(last - minute * 60) : width - right, height - 5);
    }

    let floor = samples.map(() => 0);
    for (const name of names) {
      const upper = samples.map((each, i) => floor[i] + ((each[side][name] || [0])[0]));
      pen.beginPath();
      samples.forEach((each, i) => (i ? pen.lineTo(x(each.time), y(upper[i])) : pen.moveTo(x(each.time), y(upper[i]))));
      pen.strokeStyle = colour(name); pen.lineWidth = 1.6; pen.stroke();
      for (let i = samples.length - 1; i >= 0; i -= 1) pen.lineTo(x(samples[i].time), y(floor[i]));
      pen.globalAlpha = .3; pen.fillStyle = colour(name); pen.fill(); pen.globalAlpha = 1;
      floor = upper;
    }

    let shown = samples[samples.length - 1];
    if (this.at !== null && samples.length) {
      const wanted = last - (width - right - this.at) / (width - left - right) * SPAN;
      shown = samples.reduce((best, each) => (Math.abs(each.time - wanted) < Math.abs(best.time - wanted) ? each : best));
      pen.strokeStyle = ink; pen.beginPath(); pen.moveTo(x(shown.time), top); pen.lineTo(x(shown.time), height - bottom); pen.stroke();
    }
    let legend = left;
    pen.textAlign = "left";
    const brief = names.length * 100 > width - left;
    for (const name of names) {
      const text = brief ? name : `${name} ${count((shown[side][name] || [0])[0])}`;
      pen.fillStyle = colour(name); pen.fillRect(legend, 4, 9, 9);
      pen.fillStyle = ink; pen.fillText(text, legend + 13, 12);
      legend += pen.measureText(text).width + 28;
    }
    if (this.at !== null && shown) {
      pen.textAlign = "right"; pen.fillText(new Date(shown.time * 1000).toLocaleTimeString(), width - right, 12);
    }
    if (!names.length) { pen.fillStyle = ink; pen.textAlign = "left"; pen.fillText("nothing in the last five minutes", left, 12); }
  }
}

// The next number above n that is 1, 2, 4 or 8 times a power of ten.
function nice(n) {
  const power = 10 ** Math.floor(Math.log10(n));
  return power * ([1, 2, 4, 8, 10].find((each) => each * power >= n) || 10);
}

// What the server says each second.

function add(sample) {
  state.samples.push(sample);
  while (state.samples.length && sample.time - state.samples[0].time > SPAN) state.samples.shift();
  for (const name of [...Object.keys(sample.published), ...Object.keys(sample.delivered)]) know(name);
}

function know(name) {
  if (name && !state.names.includes(name)) { state.names.push(name); state.names.sort(); }
}

function show(status) {
  const journal = status.journal, protocols = status.protocols.filter((each) => each.name !== "admin");
  protocols.forEach((each) => know(each.name));
  const sum = (key) => protocols.reduce((total, each) => total + (each[key] || 0), 0);
  set("version", status.version + (status.kernels === "native" ? "" : " · kernels in Python"));
  set("journal-state", journal.state);
  $("journal-state").className = "pill " + journal.state;
  set("durability", journal.durability ? "durability " + journal.durability : "");
  set("uptime", since(status.uptime));
  const rate = sum("published_rate");
  document.title = `${count(rate)}/s · Fyrehose` + (journal.state === "writable" ? "" : ` (${journal.state})`);
  alarm(journal.state === "writable" ? "" : `The journal is ${journal.state}: nothing is taken in.`);

  set("tile-published", count(rate) + " /s");
  set("tile-published-bytes", bytes(sum("published_bytes_rate")) + "/s · " + count(sum("published_messages")) + " in all");
  set("tile-delivered", count(sum("delivered_rate")) + " /s");
  set("tile-delivered-bytes", bytes(sum("delivered_bytes_rate")) + "/s · " + count(sum("delivered_messages")) + " in all");
  set("tile-lag", count(status.subscribers.lag));
  set("tile-subscribers", `${count(status.subscribers.total)} subscribers`);
  set("tile-commit", within(journal.commit_p50));
  set("tile-sync", `99% ${within(journal.commit_p99)} · sync ${within(journal.sync_p50)}`);
  set("tile-disk", bytes(journal.free));
  set("tile-journal", `journal ${bytes(journal.size)}`);
  set("tile-memory", bytes(status.memory.resident));
  set("tile-reactor", `reactor lag ${seconds(status.reactor.lag)}`);

  fill("protocols", protocols.map((each) => [
    named(each.name), [count(each.connections), "n"], [count(each.published_rate), "n"], [count(each.published_messages), "n"],
    [count(each.delivered_rate), "n"], [count(each.delivered_messages), "n"], [count(each.subscribers), "n"],
    [count(each.lag), "n"], [count(each.refused), each.refused ? "n bad" : "n"],
  ]));
  const streams = status.streams;
  set("streams-count", streams.matching > streams.listed.length || streams.matching !== streams.total
    ? `${count(streams.listed.length)} of ${count(streams.total)}` : count(streams.total));
  // Those that are listed are the busiest; among them a row stays where it is.
  streams.listed.sort((a, b) => (a.name < b.name ? -1 : 1));
  if (streams.hidden) {
    set("streams-count", `${count(streams.total)}; their names need the token of admin.token-file, or a policy that ` +
      "lets this machine subscribe to *");
  }
  fill("streams", streams.listed.map((each) => [
    chooser(each.name), [each.last.toLocaleString("en"), "n"], [count(each.rate), "n"],
    [each.first.toLocaleString("en"), "n"], [count(each.subscribers), "n"],
  ]));
  offer(streams.listed.map((each) => each.name));
  set("subscribers-count", count(status.subscribers.total));
  fill("subscribers", status.subscribers.listed.map((each) => [
    visible(`${each.protocol} ${each.peer}`), visible(each.stream), [each.position.toLocaleString("en"), "n"],
    [count(each.lag), each.lag > 10000 ? "n bad" : "n"], [each.paused ? "waits for its peer" : "", "dim"],
  ]));
  fill("listeners", (status.listeners || []).map((each) => [
    named(each.name, each.protocol), each.endpoint, [each.encryption || "none", each.encryption ? "" : "dim"], each.access,
    [count(each.connections), "n"],
  ]));
  fill("refusals", status.refusals.map((each) => [each.protocol, each.cause, [count(each.count), "n"]]));
  describe(journal, status);
}

function named(name, protocol = name) {
  const made = make("span");
  const swatch = make("i", undefined, "swatch");
  swatch.style.background = colour(protocol);
  made.append(swatch, name);
  return made;
}

// A name as it can be seen: what is invisible, or would turn what follows around, is written as its number.
function visible(name) {
  return name.replace(/[\p{C}\p{Zl}\p{Zp}]|^\s|\s$/gu, (sign) => `\\u{${sign.codePointAt(0).toString(16)}}`);
}

function chooser(name) {
  const made = make("button", visible(name));
  made.type = "button";
  made.title = name;
  made.dataset.stream = name;
  return made;
}

function describe(journal, status) {
  const facts = [
    ["state", journal.state],
    ["durability", journal.durability],
    ["directory", journal.directory],
    ["on disk up to", journal.durable === undefined ? undefined : `${journal.durable.toLocaleString("en")} of ${journal.position.toLocaleString("en")} bytes of log`],
    ["files", journal.segments === undefined ? undefined : `${count(journal.segments)}, ${bytes(journal.size)}`],
    ["commits", `${count(journal.commits)}; of late half are within ${seconds(journal.commit_p50)} and ${bytes(journal.commit_bytes_p50)}, 99% within ${seconds(journal.commit_p99)} and ${bytes(journal.commit_bytes_p99)}`],
    ["syncs", `half within ${seconds(journal.sync_p50)}, 99% within ${seconds(journal.sync_p99)}`],
    ["retention held by", journal.held_by || undefined],
    ["retention holds broken", journal.broken_holds ? count(journal.broken_holds) : undefined],
    ["held for peers", `${bytes(status.memory.budget_used)} of ${bytes(status.memory.budget)}`],
    ["reactor lag", `${seconds(status.reactor.lag)}, 99% within ${seconds(status.reactor.lag_p99)}`],
  ].filter(([, text]) => text !== undefined);
  const list = $("journal");
  while (list.children.length > 2 * facts.length) list.lastChild.remove();
  facts.forEach(([name, text], i) => {
    if (!list.children[2 * i]) list.append(make("dt"), make("dd"));
    list.children[2 * i].textContent = name;
    list.children[2 * i + 1].textContent = text;
  });
}

function alarm(text) {
  $("alarm").hidden = !text;
  set("alarm", text);
}

// The tail of a stream.

function offer(names) {
  const select = $("tail-stream");
  const wanted = state.stream && !names.includes(state.stream) ? [state.stream, ...names] : names;
  const there = [...select.options].slice(1).map((option) => option.value);
  if (there.length === wanted.length && [...there].sort().join("\n") === [...wanted].sort().join("\n")) return;
  if (document.activeElement === select) return; // somebody is choosing
  select.replaceChildren(select.options[0], ...[...wanted].sort().map((name) => {
    const option = make("option", visible(name));
    option.value = name;
    return option;
  }));
  select.value = state.stream;
}

function follow(stream) {
  if (state.tail) state.tail.close();
  state.tail = null;
  state.stream = stream;
  if ([...$("tail-stream").options].every((option) => option.value !== stream)) {
    const option = make("option", visible(stream));
    option.value = stream;
    $("tail-stream").append(option);
  }
  $("tail-stream").value = stream;
  clear(stream ? "Nothing has come yet." : "Choose a stream here, or in the list above.");
  if (!stream) return;
  state.tail = new EventSource(`api/streams/${encodeURIComponent(stream)}/tail`);
  state.tail.addEventListener("records", (event) => {
    if (!state.paused) append(JSON.parse(event.data));
  });
  state.tail.addEventListener("error", (event) => {
    // A connection that broke is made again; an answer that refuses is the end.
    if (event.target.readyState === EventSource.CLOSED) {
      clear("This stream cannot be shown. The policy has to allow it, or admin.token-file has to name a token.");
    }
  });
  state.tail.addEventListener("ended", (event) => {
    state.tail.close();
    clear(JSON.parse(event.data).error);
  });
}

function clear(text) {
  state.kept = [];
  $("tail").replaceChildren(make("p", text, "empty"));
}

function append(news) {
  const tail = $("tail");
  const following = tail.scrollHeight - tail.scrollTop - tail.clientHeight < 40;
  if (!state.kept.length) tail.replaceChildren();
  if (news.skipped) state.kept.push({ skipped: news.skipped });
  state.kept.push(...news.records);
  const fresh = (news.skipped ? [{ skipped: news.skipped }] : []).concat(news.records);
  tail.append(...fresh.map(row));
  while (state.kept.length > KEPT) { state.kept.shift(); tail.firstChild.remove(); }
  if (following) tail.scrollTop = tail.scrollHeight;
}

function row(record) {
  if (record.skipped) {
    const skip = make("div", undefined, "skip");
    skip.append(make("span", `… ${record.skipped.toLocaleString("en")} not shown …`));
    return skip;
  }
  const made = make("div");
  const time = new Date(record.time / 1000);
  const seq = make("span", String(record.seq), "seq");
  seq.title = time.toLocaleString() + (record.topic ? `\n${record.topic}` : "") + (record.content_type ? `\n${record.content_type}` : "");
  const from = make("span", [record.source, record.producer].filter(Boolean).join(" "), "from");
  from.title = from.textContent;
  made.append(seq, from, make("pre", written(record)));
  return made;
}

function written(record) {
  const raw = Uint8Array.from(atob(record.payload), (each) => each.charCodeAt(0));
  const more = record.size > raw.length ? ` … (${bytes(record.size)})` : "";
  if (state.form === "hex") return hex(raw) + more;
  const text = new TextDecoder().decode(raw);
  if (state.form === "json" && !more) {
    try {
      return JSON.stringify(JSON.parse(text), null, 2);
    } catch (error) {
      return text; // it is none, and shown as it is
    }
  }
  return text + more;
}

function hex(raw) {
  const lines = [], wide = window.innerWidth < 780 ? 8 : 16;
  for (let at = 0; at < Math.max(1, raw.length); at += wide) {
    const part = [...raw.slice(at, at + wide)];
    const codes = part.map((each) => each.toString(16).padStart(2, "0")).join(" ").padEnd(3 * wide);
    const signs = part.map((each) => (each > 31 && each < 127 ? String.fromCharCode(each) : ".")).join("");
    lines.push(`${at.toString(16).padStart(4, "0")}  ${codes} ${signs}`);
  }
  return lines.join("\n");
}

// Begin.

let charts = [];
let source = null;

function connect() {
  if (source) source.close();
  const match = $("filter").value.trim();
  source = new EventSource("api/events" + (match ? `?match=${encodeURIComponent(match)}` : ""));
  source.addEventListener("open", () => { set("connection", "live"); $("connection").className = "fact live on"; });
  source.addEventListener("error", () => {
    set("connection", "not connected");
    $("connection").className = "fact live off";
    alarm("The server does not answer; this is what it said last.");
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, 3000);
  });
  source.addEventListener("history", (event) => {
    state.samples = [];
    JSON.parse(event.data).forEach(add);
    charts.forEach((chart) => chart.draw());
  });
  source.addEventListener("sample", (event) => {
    add(JSON.parse(event.data));
    charts.forEach((chart) => chart.draw());
  });
  source.addEventListener("status", (event) => show(JSON.parse(event.data)));
}

function begin() {
  charts = [new Chart("chart-published", "published"), new Chart("chart-delivered", "delivered")];
  let typing = 0;
  $("filter").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(connect, 300); });
  $("streams").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) { follow(button.dataset.stream); $("tail").scrollIntoView({ block: "nearest" }); }
  });
  $("tail-stream").addEventListener("change", (event) => follow(event.target.value));
  $("tail-clear").addEventListener("click", () => clear("Nothing has come since."));
  $("tail-pause").addEventListener("click", () => {
    state.paused = !state.paused;
    $("tail-pause").setAttribute("aria-pressed", String(state.paused));
  });
  for (const input of document.getElementsByName("form")) {
    input.addEventListener("change", () => {
      state.form = input.value;
      if (state.kept.length) $("tail").replaceChildren(...state.kept.map(row));
      $("tail").scrollTop = $("tail").scrollHeight;
    });
  }
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((chart) => chart.draw()));
  connect();
}

begin();
