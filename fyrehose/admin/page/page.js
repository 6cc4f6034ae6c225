// The page of a Fyrehose server: shows the samples, the status and the tail that the server sends, in one connection for all
// tabs that show the same, and in none while the page is hidden.
import { Chart, SPANS } from "./chart.js";
import { showCluster } from "./cluster.js";
import { $, element, protocolLabel, setText } from "./dom.js";
import { age, ago, bytes, clock, count, forecast, plural, seconds, visible, whole, within } from "./format.js";
import { Caller, together } from "./live.js";
import { Table } from "./tables.js";
import { append, beginTail, endTail, follow, offer, tailed } from "./tail.js";

// The address without user and password, with which `fetch` would refuse it.
const server = new Caller(location.origin + location.pathname);
const state = { span: "5min", samples: { "5min": [], "1h": [], "24h": [] }, fetching: 0, subscription: "" };
const number = (label, key, show = count, more = {}) => (
  { label, number: true, value: (item) => item[key], show: (item) => show(item[key]), ...more });
const reported = (label, key, more = {}) => (
  { label, number: true, value: (each) => each.report[key], show: (each) => count(each.report[key]), ...more });

const COLUMNS = {
  protocols: [
    { label: "protocol", value: (each) => each.name, show: (each) => protocolLabel(each.name) },
    number("clients", "connections", count, { title: "Connections that are open" }),
    number("publishers", "publishers", count, { title: "Addresses and named producers that published in the last one or two minutes" }),
    number("subscribers", "subscribers", count, { title: "Clients that receive messages" }),
    number("published/s", "published_rate"),
    number("size/s", "published_bytes_rate", bytes),
    number("published", "published_messages", count, { title: "Messages since the server started" }),
    number("acknowledged in", "acknowledge_p99", within, {
      title: "Half of the publishes of the last minute, and 99% of them, were acknowledged within these times",
      show: acknowledged, kind: () => "long" }),
    number("delivered/s", "delivered_rate"),
    number("delivered", "delivered_messages", count, { title: "Messages sent to subscribers since the server started" }),
    number("behind", "lag", count, { title: "Messages that the subscriber furthest behind has not received yet" }),
    number("refused", "refused", count, { kind: (each) => (each.refused ? "bad" : "dim") }),
  ],
  streams: [
    // The server's own streams, whose names begin with a dot, come last.
    { label: "stream", value: (each) => (each.name[0] === "." ? "\uffff" : "") + each.name, show: (each) => streamButton(each.name) },
    number("messages/s", "rate"),
    number("size/s", "bytes_rate", bytes),
    { label: "messages", number: true, title: "Messages that are kept", value: (each) => each.last - each.first + 1, show: (each) => whole(each.last - each.first + 1) },
    number("size", "bytes", (n) => (n === null || n === undefined ? "–" : "≈ " + bytes(n)), { title: "Estimated from the newest messages" }),
    number("oldest", "oldest_age", age, { title: "Age of the oldest message" }),
    number("newest", "newest_age", age, { title: "Age of the newest message" }),
    number("first number", "first", whole),
    number("last number", "last", whole),
    number("subscribers", "subscribers"),
  ],
  subscribers: [
    { label: "client", value: (each) => each.peer, show: (each) => protocolLabel(visible(`${each.protocol} ${each.peer}`), each.protocol) },
    { label: "stream", value: (each) => visible(each.stream) },
    number("at number", "position", whole),
    number("behind", "lag", count, { kind: (each) => (each.lag > 10000 ? "bad" : "") }),
    number("delivered", "delivered"),
    { label: "state", value: subscriberState, kind: (each) => (each.paused ? (each.closes_in === null ? "" : "bad") : "dim") },
  ],
  // Filebeat and other shippers, by lumberjack.
  writers: [
    { label: "writer", value: (each) => visible(each.name), show: (each) => protocolLabel(visible(each.name), "lumberjack") },
    { label: "agent", value: (each) => visible(each.agent) },
    { label: "address", value: (each) => visible(each.address) },
    number("connections", "connections"),
    number("events/s", "rate"),
    number("events", "events", count, { title: "Since the server started" }),
    number("acknowledged", "acknowledged_ago", (n) => (n === null ? "–" : ago(n)), { title: "When the writer got its last acknowledgement" }),
    number("refused", "refused", count, { kind: (each) => (each.refused ? "bad" : "dim") }),
    number("without a route", "missed", count, { title: "Events that no route fits", kind: (each) => (each.missed ? "bad" : "dim") }),
  ],
  listeners: [
    { label: "listener", value: (each) => each.name, show: (each) => protocolLabel(each.name, each.protocol) },
    { label: "endpoint", value: (each) => each.endpoint },
    { label: "encryption", value: (each) => each.encryption || "none", kind: (each) => (each.encryption ? "" : "dim") },
    { label: "access", value: (each) => each.access },
    number("clients", "connections"),
  ],
  refusals: [
    { label: "protocol", value: (each) => each.protocol, show: (each) => protocolLabel(each.protocol) },
    { label: "cause", value: (each) => each.cause },
    number("count", "count"),
  ],
  events: [
    { label: "protocol", value: (each) => each.protocol, show: (each) => protocolLabel(each.protocol) },
    { label: "event", value: (each) => each.event },
    number("count", "count"),
  ],
  "last-refusals": [
    { label: "from", value: (each) => visible(each.peer) },
    { label: "protocol", value: (each) => each.protocol, show: (each) => protocolLabel(each.protocol) },
    { label: "cause", value: (each) => each.cause },
    number("last", "ago", ago),
    number("times", "count", count, { title: "Refusals of this network for this cause since it is listed" }),
    { label: "why", value: (each) => visible(each.detail), kind: () => "text" },
  ],
  // Retention waits for both kinds: consumers of a stream, and programs that read the journal's files.
  subscriptions: [
    { label: "subscription", value: (each) => visible(each.name) },
    { label: "reads", value: (each) => (each.kind === "files" ? "the journal's files" : visible(each.stream)) },
    { label: "at number", number: true, value: (each) => each.position ?? -1, show: atNumber },
    { label: "behind", number: true, value: (each) => each.lag ?? each.behind_bytes, show: (each) => (each.kind === "files" ? bytes(each.behind_bytes) : count(each.lag)),
      kind: (each) => (each.lag > 10000 ? "bad" : "") },
    { label: "oldest", number: true, title: "Age of the oldest message that is not acknowledged", value: (each) => (each.lag ? each.lag_seconds : -1),
      show: oldest },
    { label: "last used", number: true, value: (each) => -each.active, show: (each) => (each.consumer ? "now" : age(Math.max(0, Date.now() / 1000 - each.active / 1e6))) },
  ],
  // Processes of `fyrehose forward`, as they report themselves.
  forwarders: [
    { label: "subscription", value: (each) => visible(each.name) },
    { label: "reads", value: (each) => visible(each.stream) },
    { label: "to", value: (each) => visible(String(each.report.to)) },
    number("behind", "lag", count, { title: "Messages that are not delivered", kind: (each) => (each.lag > 10000 ? "bad" : "") }),
    { label: "oldest", number: true, title: "Age of the oldest message that is not delivered", value: (each) => (each.lag ? each.lag_seconds : -1), show: oldest },
    reported("delivered/s", "rate"),
    reported("delivered", "delivered", { title: "Since the forwarder started" }),
    reported("sent again", "retries", { title: "Batches that the destination did not confirm" }),
    reported("dead", "dead", { title: "Messages that became dead letters", kind: (each) => (each.report.dead ? "bad" : "") }),
    reported("lost", "lost", { title: "Messages that retention deleted before they were delivered", kind: (each) => (each.report.lost ? "bad" : "") }),
    { label: "last error", value: (each) => visible(String(each.report.error ?? "")), show: lastError, kind: () => "text" },
    { label: "state", value: forwarderState, kind: (each) => (forwarderState(each) === "delivers" ? "dim" : "bad text") },
  ],
  shared: [
    { label: "subscription", value: (each) => visible(each.name), show: (each) => leasesButton(each.name) },
    { label: "stream", value: (each) => visible(each.stream) },
    number("new", "lag", count, { title: "Messages that no worker has had" }),
    number("waiting", "waiting", count, { title: "Messages that wait to be leased again, or for their key" }),
    number("delayed", "delayed", count, { title: "Messages that were returned, and wait for their delay" }),
    number("leased", "in_flight", count, { title: "Messages that workers have" }),
    number("settled/s", "settled_rate", count, { title: "In the last minute" }),
    { label: "empty in", number: true, title: "If the number of open messages goes on falling as in the last minute", value: (each) => each.empty_in ?? Infinity,
      show: (each) => (each.empty_in === null ? "–" : each.empty_in ? forecast(each.empty_in) : "empty") },
    { label: "oldest", number: true, title: "Age of the oldest message that is not settled", value: (each) => each.oldest_unsettled_seconds ?? -1,
      show: (each) => (each.oldest_unsettled_seconds ? seconds(each.oldest_unsettled_seconds) : "") },
    number("settled", "settled_total"),
    number("leased again", "redelivered_total", count, { title: "Since the server started" }),
    number("dead", "dead_total", count, { title: "Messages that became dead letters", kind: (each) => (each.dead_total ? "bad" : "") }),
    number("expired", "expired_total", count, { title: "Messages that retention deleted before they were settled", kind: (each) => (each.expired_total ? "bad" : "") }),
    { label: "state", value: sharedState, kind: (each) => (each.paused || each.window_full ? "bad" : "dim") },
  ],
  leases: [
    { label: "number", number: true, value: (each) => each.seq, show: (each) => whole(each.seq) },
    { label: "stream", value: (each) => visible(each.stream) },
    { label: "worker", value: (each) => visible(each.consumer || "") },
    number("failures", "failures"),
    { label: "lease ends in", number: true, value: (each) => each.ends_in ?? -1, show: (each) => (each.why === undefined ? seconds(Math.max(0, each.ends_in)) : "") },
    { label: "dead because of", value: (each) => visible(each.why || ""), kind: () => "bad" },
  ],
};

function oldest(each) { return each.lag && each.lag_seconds ? seconds(each.lag_seconds) : ""; }

function lastError({ report }) {
  return report.error ? `${ago(report.error_ago + report.ago)}: ${visible(String(report.error))}` : "";
}

// What a forwarder is doing.  It reports every five seconds; nothing is known of one that does not.
function forwarderState({ consumer, report }) {
  if (!consumer) return `not running, last heard ${ago(report.ago)}`;
  if (report.ago > 20) return `connected, last heard ${ago(report.ago)}`;
  return visible(String(report.problem ?? "")) || "delivers";
}

function leasesButton(name) {
  const button = element("button", visible(name));
  button.type = "button";
  button.title = "Show its leases and its last dead letters";
  button.dataset.subscription = name;
  return button;
}

// What keeps messages of a shared subscription from workers.
function sharedState(each) {
  if (each.paused) return "paused";
  if (each.window_full) return "window full";
  // Messages that workers may have had before a start or a take-over wait for these workers.
  return each.held_until ? `held until ${clock(each.held_until / 1e6, "5min")}` : "";
}

// Show the leases and the last dead letters of the chosen shared subscription.
async function showLeases() {
  const name = state.subscription;
  if (!name) return;
  let found = { leases: [], dead_letters: [] };
  try {
    found = (await server.ask("GET", `/api/subscriptions/${encodeURIComponent(name)}`)).body;
  } catch (error) {
    if (error.retriable) return; // the next status asks again
  }
  if (state.subscription !== name) return;
  setText("leases-name", visible(name));
  $("leases-card").hidden = false;
  tables.leases.show([...found.leases, ...found.dead_letters]);
}

// What a subscriber is doing, and when the server closes its connection if it does not read.
function subscriberState(each) {
  if (!each.paused) return "up to date";
  return each.closes_in === null ? "waits for the client" : `does not read, disconnected in ${Math.round(each.closes_in)} s`;
}

const KEYS = {
  protocols: (each) => each.name,
  streams: (each) => each.name,
  subscribers: (each) => `${each.protocol} ${each.peer} ${each.stream}`,
  writers: (each) => each.name,
  listeners: (each) => `${each.name} ${each.endpoint}`,
  refusals: (each) => `${each.protocol} ${each.cause}`,
  events: (each) => `${each.protocol} ${each.event}`,
  "last-refusals": (each) => `${each.protocol} ${each.cause} ${each.network}`,
  subscriptions: (each) => each.name,
  forwarders: (each) => each.name,
  shared: (each) => each.name,
  leases: (each) => `${each.stream} ${each.seq}`,
};
// The column by which a table is sorted at first, if not by the first one.
const SORTED = { "last-refusals": 3 };
const tables = {};
let charts = [];
let connection = new AbortController();

function showStatus(status) {
  const journal = status.journal, protocols = status.protocols.filter((each) => each.name !== "admin");
  showHeader(status, journal);
  showTiles(status, journal, protocols);
  showCluster(journal.cluster);
  tables.protocols.show(protocols);
  const streams = status.streams;
  setText("streams-count", streams.hidden
    ? `${count(streams.total)}; names are hidden: set admin.token-file, or let this machine subscribe to * in the access policy`
    : streams.matching > streams.listed.length || streams.matching !== streams.total
      ? `${count(streams.listed.length)} of ${count(streams.total)}` : count(streams.total));
  tables.streams.show(streams.listed);
  offer(streams.listed.map((each) => each.name));
  // A listed subscriber may stand for several clients, such as those of the event bus.
  const listed = status.subscribers.listed.reduce((sum, each) => sum + each.clients, 0);
  setText("subscribers-count", listed && status.subscribers.total > listed
    ? `${count(status.subscribers.total)}; the ${count(listed)} furthest behind are listed` : count(status.subscribers.total));
  tables.subscribers.show(unique(status.subscribers.listed));
  const writers = status.writers;
  setText("writers-count", writers.total > writers.listed.length ? `${count(writers.listed.length)} of ${count(writers.total)}` : "");
  tables.writers.show(writers.listed);
  $("writers-card").hidden = !writers.listed.length;
  tables.listeners.show(status.listeners || []);
  tables.refusals.show(status.refusals);
  tables.events.show(status.events);
  tables["last-refusals"].show(status.last_refusals);
  const { listed: named, total } = status.subscriptions;
  setText("subscriptions-count", total > named.length ? `the ${count(named.length)} of ${count(total)} that are furthest behind` : "");
  const shared = named.filter((each) => each.kind === "shared");
  tables.subscriptions.show(named.filter((each) => each.kind !== "shared"));
  const forwarders = named.filter((each) => each.report?.to !== undefined);
  tables.forwarders.show(forwarders);
  $("forwarders-card").hidden = !forwarders.length;
  tables.shared.show(shared);
  $("shared-card").hidden = !shared.length;
  showLeases();
  showJournal(journal, status);
}

// One connection may subscribe to a stream twice; rows need keys of their own.
function atNumber(each) {
  if (each.kind === "files") return "";
  return each.kind === "pattern" ? `in ${plural(each.streams, "stream")}` : whole(each.position);
}

function unique(listed) {
  const seen = new Map();
  return listed.map((each) => {
    const key = KEYS.subscribers(each), again = (seen.get(key) || 0) + 1;
    seen.set(key, again);
    return again === 1 ? each : { ...each, peer: `${each.peer} (${again})` };
  });
}

function showHeader(status, journal) {
  setText("server", nameOf(status));
  setText("version", status.version + (status.kernels === "native" ? "" : " · pure-Python kernels"));
  setText("journal-state", journal.state);
  $("journal-state").className = "pill " + journal.state;
  setText("durability", journal.durability ? "durability " + journal.durability : "");
  setText("uptime", "up " + age(status.uptime));
  const follows = journal.state === "read-only" && journal.cluster && journal.cluster.role === "follower";
  showAlarm(journal.state === "writable" || follows ? "" : `The journal is ${journal.state}: publishing is refused.`);
}

// The name of the server: in a cluster, that and the machine.
function nameOf({ host, journal: { cluster } }) {
  return visible(cluster && cluster.name !== host ? `${cluster.name} on ${host}` : host);
}

function showTiles(status, journal, protocols) {
  const sum = (key) => protocols.reduce((total, each) => total + (each[key] || 0), 0);
  const rate = sum("published_rate");
  document.title = `${nameOf(status)} · ${journal.state === "writable" ? "" : `${journal.state} · `}${count(rate)}/s · Fyrehose`;
  setText("tile-published", count(rate));
  setText("tile-published-bytes", `${bytes(sum("published_bytes_rate"))}/s from ${plural(sum("publishers"), "publisher")}`);
  setText("tile-delivered", count(sum("delivered_rate")));
  setText("tile-delivered-bytes", `${bytes(sum("delivered_bytes_rate"))}/s to ${plural(status.subscribers.total, "subscriber")}`);
  setText("tile-lag", count(status.subscribers.lag));
  setText("tile-subscribers", status.subscribers.total ? "messages behind" : "no subscribers");
  setText("tile-commit", within(journal.commit_p50));
  setText("tile-sync", journal.commit_p99 === null ? "no commits in the last minute" : `99% ${within(journal.commit_p99)}`);
  setText("tile-disk", bytes(journal.free));
  setText("tile-journal", journal.full_in === null || journal.full_in === undefined ? `journal ${bytes(journal.size)}` : `full in ${forecast(journal.full_in)}`);
  $("tile-disk").className = journal.full_in !== null && journal.full_in !== undefined && journal.full_in < 86400 ? "bad" : "";
  setText("tile-memory", bytes(status.memory.resident));
  setText("tile-reactor", `longest pause ${seconds(status.reactor.lag)}`);
}

function acknowledged(each) {
  return each.acknowledge_p50 === null ? "–" : `${within(each.acknowledge_p50)} · 99% ${within(each.acknowledge_p99)}`;
}

function streamButton(name) {
  const made = element("button", visible(name));
  made.type = "button";
  made.title = `Follow ${visible(name)} below`;
  made.dataset.stream = name;
  return made;
}

function showJournal(journal, status) {
  const known = journal.size !== undefined;
  const facts = [
    ["directory", journal.directory],
    ["size", known ? `${bytes(journal.size)} in ${plural(journal.segments, "segment")}` : undefined],
    ["retention", known ? retention(journal) : undefined],
    ["disk", known ? `${bytes(journal.free)} free; ${fullness(journal)}` : undefined],
    ["not durable yet", known ? bytes(journal.position - journal.durable) : undefined],
    ["commits in the last minute", journal.commit_p50 === null ? "none" : `half ${within(journal.commit_p50)} and ${bytes(journal.commit_bytes_p50)}, 99% ${within(journal.commit_p99)} and ${bytes(journal.commit_bytes_p99)}`],
    ["syncs in the last minute", journal.sync_p50 === null ? "none" : `half ${within(journal.sync_p50)}, 99% ${within(journal.sync_p99)}`],
    ["commits in total", whole(journal.commits)],
    ["retention held by", journal.held_by || undefined],
    ["subscriptions that lost records", journal.overrun_subscriptions ? count(journal.overrun_subscriptions) : undefined],
    ["the disk does not answer", journal.write_age >= 2 ? `for ${age(journal.write_age)}: nothing is acknowledged` : undefined],
    ["damage", (journal.damage || [])[0]],
    ["cluster", journal.cluster ? journal.cluster.summary : undefined],
    ["buffers", `${bytes(status.memory.budget_used)} of ${bytes(status.memory.budget)}`],
    ["pauses of the server", `99% ${within(status.reactor.lag_p99)} in the last minute`],
  ].filter(([, text]) => text !== undefined);
  const list = $("journal");
  while (list.children.length > 2 * facts.length) list.lastChild.remove();
  facts.forEach(([name, text], i) => {
    if (!list.children[2 * i]) list.append(element("dt"), element("dd"));
    list.children[2 * i].textContent = name;
    list.children[2 * i + 1].textContent = text;
  });
}

function retention(journal) {
  const limits = [];
  if (journal.keep_bytes) limits.push(`the newest ${bytes(journal.keep_bytes)}`);
  if (journal.keep_age) limits.push(`the last ${age(journal.keep_age)}`);
  return limits.length ? `keeps ${limits.join(", of these ")}` : "keeps everything";
}

function fullness(journal) {
  if (journal.full_in !== null) return `full in ${forecast(journal.full_in)} at ${bytes(journal.written_rate)}/s`;
  return journal.written_rate ? "retention keeps it from filling up" : "the journal does not grow";
}

function showAlarm(text) {
  $("alarm").hidden = !text;
  setText("alarm", text);
}

function addSample(sample) {
  const samples = state.samples["5min"];
  samples.push(sample);
  while (sample.time - samples[0].time > SPANS["5min"].length) samples.shift();
}

function drawCharts() { charts.forEach((chart) => chart.draw()); }

// Show another span.  Its samples are fetched now, and again whenever there is a new one.
async function showSpan(span) {
  state.span = span;
  clearTimeout(state.fetching);
  drawCharts();
  if (span === "5min") return;
  try {
    state.samples[span] = (await server.ask("GET", `/api/history?span=${span}`)).body.samples;
  } catch (error) {
    if (!error.retriable) throw error; // else the page says already that the server does not answer
  }
  if (state.span !== span) return;
  drawCharts();
  state.fetching = setTimeout(() => showSpan(span), Math.min(SPANS[span].step, 30) * 1000);
}

// Show the events of the server, from now on with the present filter and tail; none while the page is hidden.
async function connect() {
  connection.abort();
  if (document.hidden) return;
  const { signal } = (connection = new AbortController());
  const wishes = Object.entries({ match: $("filter").value.trim(), tail: tailed() }).filter(([, text]) => text);
  const path = `/api/events?${new URLSearchParams(wishes)}`;
  try {
    for await (const { type, data } of together(server.url + path, (inner) => server.live(() => path, inner), signal)) {
      if (SHOW[type] && !signal.aborted) SHOW[type](data);
    }
  } catch (error) {
    if (signal.aborted) return;
    showConnection("ended", "off");
    showAlarm(`${error.message}.`);
  }
}

const SHOW = {
  lost: () => {
    showConnection("not connected", "off");
    showAlarm("The server does not answer; the page shows its last known state.");
  },
  history: (samples) => {
    showConnection("live", "on");
    state.samples["5min"] = [];
    samples.forEach(addSample);
    drawCharts();
  },
  sample: (sample) => { addSample(sample); if (state.span === "5min") drawCharts(); },
  status: showStatus,
  records: append,
  "tail-ended": ({ error }) => endTail(error),
};

function showConnection(text, kind) {
  setText("connection", text);
  $("connection").className = `fact live ${kind}`;
}

function begin() {
  for (const [id, columns] of Object.entries(COLUMNS)) tables[id] = new Table(id, columns, KEYS[id], SORTED[id]);
  const samples = () => ({ span: state.span, samples: state.samples[state.span] });
  charts = [new Chart("chart-published", "published", samples), new Chart("chart-delivered", "delivered", samples)];
  let typing = 0;
  $("filter").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(connect, 300); });
  $("streams").addEventListener("click", (event) => {
    const button = event.target.closest("td button");
    if (button) { follow(button.dataset.stream); $("tail").scrollIntoView({ block: "nearest" }); }
  });
  $("shared").addEventListener("click", (event) => {
    const button = event.target.closest("td button");
    if (button) { state.subscription = button.dataset.subscription; showLeases(); }
  });
  for (const input of document.getElementsByName("span")) input.addEventListener("change", () => showSpan(input.value));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCharts);
  document.addEventListener("visibilitychange", connect);
  beginTail(connect);
  connect();
}

begin();
