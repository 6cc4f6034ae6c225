// The page of a Fyrehose server.  Data from peers (stream names, addresses, payloads) is inserted as text, never as
// markup.
"use strict";

const SPAN = 300; // time span of the charts, in seconds
const KEPT = 500; // the most messages that the tail keeps
const $ = (id) => document.getElementById(id);
const state = { samples: [], names: [], tail: null, stream: "", form: "text", paused: false, kept: [] };

// Format numbers for people.

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

function uptime(n) {
  const days = Math.floor(n / 86400), hours = Math.floor(n / 3600) % 24, minutes = Math.floor(n / 60) % 60;
  if (days) return `up ${days} d ${hours} h`;
  if (hours) return `up ${hours} h ${minutes} min`;
  return minutes ? `up ${minutes} min` : `up ${Math.floor(n)} s`;
}

// Helpers for the document.

function setText(id, text) { if ($(id).textContent !== text) $(id).textContent = text; }

function createElement(tag, text, kind) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function colour(name) {
  const at = state.names.indexOf(name);
  return getComputedStyle(document.documentElement).getPropertyValue("--c" + (at < 0 ? 7 : at % 8)).trim();
}

// Fill a table with rows of cells; a cell is text, [text, class] or an element.  Existing rows are reused, so that the
// focus and the selection of the user stay.
function fillTable(id, rows) {
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

// Charts: messages per second as stacked areas, one per protocol.

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
    const most = axisMaximum(Math.max(1, ...samples.map(total)));
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
    if (!names.length) { pen.fillStyle = ink; pen.textAlign = "left"; pen.fillText("no messages in the last five minutes", left, 12); }
  }
}

// Round n up to 1, 2, 4 or 8 times a power of ten, for the axis of a chart.
function axisMaximum(n) {
  const power = 10 ** Math.floor(Math.log10(n));
  return power * ([1, 2, 4, 8, 10].find((each) => each * power >= n) || 10);
}

// Show the samples and the status that the server sends each second.

function addSample(sample) {
  state.samples.push(sample);
  while (state.samples.length && sample.time - state.samples[0].time > SPAN) state.samples.shift();
  for (const name of [...Object.keys(sample.published), ...Object.keys(sample.delivered)]) addProtocol(name);
}

function addProtocol(name) {
  if (name && !state.names.includes(name)) { state.names.push(name); state.names.sort(); }
}

function showStatus(status) {
  const journal = status.journal, protocols = status.protocols.filter((each) => each.name !== "admin");
  protocols.forEach((each) => addProtocol(each.name));
  const sum = (key) => protocols.reduce((total, each) => total + (each[key] || 0), 0);
  setText("version", status.version + (status.kernels === "native" ? "" : " · pure-Python kernels"));
  setText("journal-state", journal.state);
  $("journal-state").className = "pill " + journal.state;
  setText("durability", journal.durability ? "durability " + journal.durability : "");
  setText("uptime", uptime(status.uptime));
  const rate = sum("published_rate");
  document.title = `${count(rate)}/s · Fyrehose` + (journal.state === "writable" ? "" : ` (${journal.state})`);
  showAlarm(journal.state === "writable" ? "" : `The journal is ${journal.state}: publishing is refused.`);

  setText("tile-published", count(rate) + " /s");
  setText("tile-published-bytes", bytes(sum("published_bytes_rate")) + "/s · " + count(sum("published_messages")) + " in total");
  setText("tile-delivered", count(sum("delivered_rate")) + " /s");
  setText("tile-delivered-bytes", bytes(sum("delivered_bytes_rate")) + "/s · " + count(sum("delivered_messages")) + " in total");
  setText("tile-lag", count(status.subscribers.lag));
  setText("tile-subscribers", `${count(status.subscribers.total)} subscribers`);
  setText("tile-commit", within(journal.commit_p50));
  setText("tile-sync", `p99 ${within(journal.commit_p99)} · sync p50 ${within(journal.sync_p50)}`);
  setText("tile-disk", bytes(journal.free));
  setText("tile-journal", `journal ${bytes(journal.size)}`);
  setText("tile-memory", bytes(status.memory.resident));
  setText("tile-reactor", `reactor lag ${seconds(status.reactor.lag)}`);

  fillTable("protocols", protocols.map((each) => [
    protocolLabel(each.name), [count(each.connections), "n"], [count(each.published_rate), "n"], [count(each.published_messages), "n"],
    [count(each.delivered_rate), "n"], [count(each.delivered_messages), "n"], [count(each.subscribers), "n"],
    [count(each.lag), "n"], [count(each.refused), each.refused ? "n bad" : "n"],
  ]));
  const streams = status.streams;
  setText("streams-count", streams.matching > streams.listed.length || streams.matching !== streams.total
    ? `${count(streams.listed.length)} of ${count(streams.total)}` : count(streams.total));
  // The server lists the busiest streams; sorting them by name keeps each row in its place.
  streams.listed.sort((a, b) => (a.name < b.name ? -1 : 1));
  if (streams.hidden) {
    setText("streams-count", `${count(streams.total)}; names are hidden: set admin.token-file, or let this machine ` +
      "subscribe to * in the access policy");
  }
  fillTable("streams", streams.listed.map((each) => [
    streamButton(each.name), [each.last.toLocaleString("en"), "n"], [count(each.rate), "n"],
    [each.first.toLocaleString("en"), "n"], [count(each.subscribers), "n"],
  ]));
  offerStreams(streams.listed.map((each) => each.name));
  setText("subscribers-count", count(status.subscribers.total));
  fillTable("subscribers", status.subscribers.listed.map((each) => [
    escapeInvisible(`${each.protocol} ${each.peer}`), escapeInvisible(each.stream), [each.position.toLocaleString("en"), "n"],
    [count(each.lag), each.lag > 10000 ? "n bad" : "n"], [each.paused ? "waiting for the peer" : "", "dim"],
  ]));
  const named = status.subscriptions;
  setText("subscriptions-count", count(named.total));
  fillTable("subscriptions", named.listed.map((each) => (each.kind === "files"
    ? [each.name, ["the journal's files", "dim"], "", [bytes(each.behind_bytes), "n"], "", ["", "dim"]]
    : [each.name, escapeInvisible(each.stream), [each.position.toLocaleString("en"), "n"],
      [count(each.lag), each.lag > 10000 ? "n bad" : "n"],
      [each.lag && each.lag_seconds !== null ? seconds(each.lag_seconds) : "", "n"],
      [each.consumer ? "consumer connected" : "", "dim"]])));
  fillTable("listeners", (status.listeners || []).map((each) => [
    protocolLabel(each.name, each.protocol), each.endpoint, [each.encryption || "none", each.encryption ? "" : "dim"], each.access,
    [count(each.connections), "n"],
  ]));
  fillTable("refusals", status.refusals.map((each) => [each.protocol, each.cause, [count(each.count), "n"]]));
  showJournal(journal, status);
}

function protocolLabel(name, protocol = name) {
  const made = createElement("span");
  const swatch = createElement("i", undefined, "swatch");
  swatch.style.background = colour(protocol);
  made.append(swatch, name);
  return made;
}

// Replace invisible characters, and those that change the direction of text, by their code points.
function escapeInvisible(name) {
  return name.replace(/[\p{C}\p{Zl}\p{Zp}]|^\s|\s$/gu, (sign) => `\\u{${sign.codePointAt(0).toString(16)}}`);
}

function streamButton(name) {
  const made = createElement("button", escapeInvisible(name));
  made.type = "button";
  made.title = name;
  made.dataset.stream = name;
  return made;
}

function showJournal(journal, status) {
  const facts = [
    ["state", journal.state],
    ["durability", journal.durability],
    ["directory", journal.directory],
    ["durable", journal.durable === undefined ? undefined : `${journal.durable.toLocaleString("en")} of ${journal.position.toLocaleString("en")} bytes appended`],
    ["segments", journal.segments === undefined ? undefined : `${count(journal.segments)}, ${bytes(journal.size)}`],
    ["commits", `${count(journal.commits)}; last minute: p50 ${seconds(journal.commit_p50)} / ${bytes(journal.commit_bytes_p50)}, p99 ${seconds(journal.commit_p99)} / ${bytes(journal.commit_bytes_p99)}`],
    ["syncs", `last minute: p50 ${seconds(journal.sync_p50)}, p99 ${seconds(journal.sync_p99)}`],
    ["retention held by", journal.held_by || undefined],
    ["retention holds broken", journal.broken_holds ? count(journal.broken_holds) : undefined],
    ["memory budget used", `${bytes(status.memory.budget_used)} of ${bytes(status.memory.budget)}`],
    ["reactor lag", `${seconds(status.reactor.lag)}; last minute: p99 ${seconds(status.reactor.lag_p99)}`],
  ].filter(([, text]) => text !== undefined);
  const list = $("journal");
  while (list.children.length > 2 * facts.length) list.lastChild.remove();
  facts.forEach(([name, text], i) => {
    if (!list.children[2 * i]) list.append(createElement("dt"), createElement("dd"));
    list.children[2 * i].textContent = name;
    list.children[2 * i + 1].textContent = text;
  });
}

function showAlarm(text) {
  $("alarm").hidden = !text;
  setText("alarm", text);
}

// The tail of a stream.

function offerStreams(names) {
  const select = $("tail-stream");
  const wanted = state.stream && !names.includes(state.stream) ? [state.stream, ...names] : names;
  const there = [...select.options].slice(1).map((option) => option.value);
  if (there.length === wanted.length && [...there].sort().join("\n") === [...wanted].sort().join("\n")) return;
  if (document.activeElement === select) return; // do not change the list while the user has it open
  select.replaceChildren(select.options[0], ...[...wanted].sort().map((name) => {
    const option = createElement("option", escapeInvisible(name));
    option.value = name;
    return option;
  }));
  select.value = state.stream;
}

function followStream(stream) {
  if (state.tail) state.tail.close();
  state.tail = null;
  state.stream = stream;
  if ([...$("tail-stream").options].every((option) => option.value !== stream)) {
    const option = createElement("option", escapeInvisible(stream));
    option.value = stream;
    $("tail-stream").append(option);
  }
  $("tail-stream").value = stream;
  clear(stream ? "No messages yet." : "Choose a stream here, or in the list above.");
  if (!stream) return;
  state.tail = new EventSource(`api/streams/${encodeURIComponent(stream)}/tail`);
  state.tail.addEventListener("records", (event) => {
    if (!state.paused) appendRecords(JSON.parse(event.data));
  });
  state.tail.addEventListener("error", (event) => {
    // The browser reconnects by itself, except when the server refuses the request.
    if (event.target.readyState === EventSource.CLOSED) {
      clear("This stream cannot be shown: allow it in the access policy, or set admin.token-file.");
    }
  });
  state.tail.addEventListener("ended", (event) => {
    state.tail.close();
    clear(JSON.parse(event.data).error);
  });
}

function clear(text) {
  state.kept = [];
  $("tail").replaceChildren(createElement("p", text, "empty"));
}

function appendRecords(update) {
  const tail = $("tail");
  const following = tail.scrollHeight - tail.scrollTop - tail.clientHeight < 40;
  if (!state.kept.length) tail.replaceChildren();
  if (update.skipped) state.kept.push({ skipped: update.skipped });
  state.kept.push(...update.records);
  const fresh = (update.skipped ? [{ skipped: update.skipped }] : []).concat(update.records);
  tail.append(...fresh.map(recordRow));
  while (state.kept.length > KEPT) { state.kept.shift(); tail.firstChild.remove(); }
  if (following) tail.scrollTop = tail.scrollHeight;
}

function recordRow(record) {
  if (record.skipped) {
    const skip = createElement("div", undefined, "skip");
    skip.append(createElement("span", `… ${record.skipped.toLocaleString("en")} messages not shown …`));
    return skip;
  }
  const made = createElement("div");
  const time = new Date(record.time / 1000);
  const seq = createElement("span", String(record.seq), "seq");
  seq.title = time.toLocaleString() + (record.topic ? `\n${record.topic}` : "") + (record.content_type ? `\n${record.content_type}` : "");
  const from = createElement("span", [record.source, record.producer].filter(Boolean).join(" "), "from");
  from.title = from.textContent;
  made.append(seq, from, createElement("pre", payloadText(record)));
  return made;
}

function payloadText(record) {
  const raw = Uint8Array.from(atob(record.payload), (each) => each.charCodeAt(0));
  const more = record.size > raw.length ? ` … (${bytes(record.size)})` : "";
  if (state.form === "hex") return hex(raw) + more;
  const text = new TextDecoder().decode(raw);
  if (state.form === "json" && !more) {
    try {
      return JSON.stringify(JSON.parse(text), null, 2);
    } catch (error) {
      return text; // show text that is not JSON as it is
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

// Connect to the server and handle input.

let charts = [];
let source = null;

function connect() {
  if (source) source.close();
  const match = $("filter").value.trim();
  source = new EventSource("api/events" + (match ? `?match=${encodeURIComponent(match)}` : ""));
  source.addEventListener("open", () => { setText("connection", "live"); $("connection").className = "fact live on"; });
  source.addEventListener("error", () => {
    setText("connection", "not connected");
    $("connection").className = "fact live off";
    showAlarm("The server does not answer; the page shows its last known state.");
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, 3000);
  });
  source.addEventListener("history", (event) => {
    state.samples = [];
    JSON.parse(event.data).forEach(addSample);
    charts.forEach((chart) => chart.draw());
  });
  source.addEventListener("sample", (event) => {
    addSample(JSON.parse(event.data));
    charts.forEach((chart) => chart.draw());
  });
  source.addEventListener("status", (event) => showStatus(JSON.parse(event.data)));
}

function begin() {
  charts = [new Chart("chart-published", "published"), new Chart("chart-delivered", "delivered")];
  let typing = 0;
  $("filter").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(connect, 300); });
  $("streams").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) { followStream(button.dataset.stream); $("tail").scrollIntoView({ block: "nearest" }); }
  });
  $("tail-stream").addEventListener("change", (event) => followStream(event.target.value));
  $("tail-clear").addEventListener("click", () => clear("No new messages."));
  $("tail-pause").addEventListener("click", () => {
    state.paused = !state.paused;
    $("tail-pause").setAttribute("aria-pressed", String(state.paused));
  });
  for (const input of document.getElementsByName("form")) {
    input.addEventListener("change", () => {
      state.form = input.value;
      if (state.kept.length) $("tail").replaceChildren(...state.kept.map(recordRow));
      $("tail").scrollTop = $("tail").scrollHeight;
    });
  }
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((chart) => chart.draw()));
  connect();
}

begin();
