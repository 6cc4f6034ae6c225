// The live tail of one stream: its latest messages as text, JSON or hex, with a search.
import { $, element, setText } from "./dom.js";
import { bytes, plural, visible, whole } from "./format.js";

const KEPT = 500; // the most messages that the tail keeps
const state = { stream: "", last: 0, form: "text", paused: false, kept: [], search: "", changed: null };

// Call changed() whenever another stream is followed.
export function beginTail(changed) {
  state.changed = changed;
  $("tail-stream").addEventListener("change", (event) => follow(event.target.value));
  $("tail-clear").addEventListener("click", () => clear("No new messages."));
  $("tail-pause").addEventListener("click", () => {
    state.paused = !state.paused;
    $("tail-pause").setAttribute("aria-pressed", String(state.paused));
    setText("tail-pause", state.paused ? "paused" : "pause");
  });
  $("tail-search").addEventListener("input", (event) => { state.search = event.target.value.toLowerCase(); redraw(); });
  for (const input of document.getElementsByName("form")) {
    input.addEventListener("change", () => { state.form = input.value; redraw(); });
  }
}

// Offer streams by name in the list of the tail.
export function offer(names) {
  const select = $("tail-stream");
  const wanted = (state.stream && !names.includes(state.stream) ? [state.stream, ...names] : [...names]).sort();
  const there = [...select.options].slice(1).map((option) => option.value);
  if (there.join("\n") === wanted.join("\n")) return;
  if (document.activeElement === select) return; // do not change the list while the user has it open
  select.replaceChildren(select.options[0], ...wanted.map(optionOf));
  select.value = state.stream;
}

function optionOf(name) {
  const option = element("option", visible(name));
  option.value = name;
  return option;
}

// The stream that is followed; "" for none.
export function tailed() { return state.stream; }

export function follow(stream) {
  state.stream = stream;
  state.last = 0;
  if ([...$("tail-stream").options].every((option) => option.value !== stream)) $("tail-stream").append(optionOf(stream));
  $("tail-stream").value = stream;
  clear(stream ? "No messages yet." : "Choose a stream here, or in the list above.");
  state.changed();
}

// Show that no more messages follow, and why.
export function endTail(why) { clear(`This stream cannot be shown: ${why}.`); }

function clear(text) {
  state.kept = [];
  $("tail").replaceChildren(element("p", text, "empty"));
  showFound();
}

// Show records that are new.  A connection begins with the latest ones, some of which may be here already.
export function append({ skipped, records }) {
  if (state.paused) return;
  const newest = records.at(-1).seq;
  if (newest < state.last) clear("No messages yet."); // the numbers have begun again
  if (newest < state.last) state.last = 0;
  const later = records.filter(({ seq }) => seq > state.last);
  if (!later.length) return;
  const missing = state.last ? later[0].seq - state.last - 1 : skipped;
  state.last = newest;
  if (!state.kept.length) $("tail").replaceChildren();
  const fresh = [...(missing ? [{ skipped: missing }] : []), ...later];
  fresh.forEach((record) => { record.text = textOf(record); record.row = rowOf(record); });
  state.kept.push(...fresh);
  const following = atEnd();
  $("tail").append(...fresh.map((record) => record.row));
  while (state.kept.length > KEPT) state.kept.shift().row.remove();
  if (following) toEnd();
  showFound();
}

function redraw() {
  if (!state.kept.length) return;
  for (const record of state.kept) { record.text = textOf(record); record.row = rowOf(record); }
  $("tail").replaceChildren(...state.kept.map((record) => record.row));
  toEnd();
  showFound();
}

function atEnd() { return $("tail").scrollHeight - $("tail").scrollTop - $("tail").clientHeight < 40; }

function toEnd() { $("tail").scrollTop = $("tail").scrollHeight; }

function showFound() {
  const records = state.kept.filter((record) => !record.skipped);
  const found = records.filter(matches).length;
  setText("tail-found", state.search && records.length ? `${found} of ${plural(records.length, "message")}` : "");
}

function matches(record) { return !state.search || record.text.toLowerCase().includes(state.search); }

function rowOf(record) {
  const row = element("div");
  if (record.skipped) {
    row.className = "skip";
    row.append(element("span", `… ${whole(record.skipped)} messages not shown …`));
    row.hidden = Boolean(state.search);
    return row;
  }
  const time = new Date(record.time / 1000);
  const when = element("time", time.toLocaleTimeString("en-GB") + "." + String(time.getMilliseconds()).padStart(3, "0"));
  when.dateTime = time.toISOString();
  when.title = [time.toLocaleString(), record.content_type].filter(Boolean).join("\n");
  const from = element("span", [record.source, record.producer, record.topic].filter(Boolean).join(" "), "from");
  from.title = from.textContent;
  const payload = element("pre");
  payload.append(...marked(record.text));
  row.append(when, element("span", String(record.seq), "seq"), from, payload);
  row.hidden = !matches(record);
  return row;
}

// Return text as nodes, in which everything that the search finds is marked.
function marked(text) {
  if (!state.search) return [text];
  const nodes = [], lower = text.toLowerCase();
  // Where lower case has another length than the text, positions would not fit.
  if (lower.length !== text.length) return [text];
  let at = 0;
  for (let found = lower.indexOf(state.search); found >= 0; found = lower.indexOf(state.search, at)) {
    nodes.push(text.slice(at, found), element("mark", text.slice(found, found + state.search.length)));
    at = found + state.search.length;
  }
  return [...nodes, text.slice(at)];
}

function textOf(record) {
  if (record.skipped) return "";
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
