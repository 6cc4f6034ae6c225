// The picture of a cluster: its leader, the NATS servers with the shared log, and its followers, with what each lacks.
import { $, setText } from "./dom.js";
import { bytes, count, plural, seconds, visible } from "./format.js";

const NODE = 46, GAP = 14, TOP = 8, NARROW = 640;
let shown = "", latest = null;

function svg(tag, attributes = {}, text = undefined) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// What a server lacks, in words; "" if that is unknown.
function lack(member) {
  if (member.behind === null) return "";
  if (!member.behind) return "not behind";
  const time = member.seconds === null ? [] : [seconds(member.seconds)];
  const records = member.records === null ? [] : [plural(member.records, "message")];
  return [bytes(member.behind), ...records, ...time].join(", ") + " behind";
}

function ofMember(member, leads) {
  const state = !member.alive && member.heard !== null ? `silent for ${seconds(member.heard)}` : leads ? "leads" : member.role;
  return { name: visible(member.name), state, detail: visible(member.address || ""), lack: leads ? "" : lack(member),
    kind: !member.alive ? "lost" : leads ? "leads" : "" };
}

function ofNats(node, answers) {
  const state = !answers ? "no answer" : node.offline ? "offline" : node.leads ? "leads the shared log" : node.current ? "current" : `${count(node.lag)} entries behind`;
  return { name: visible(node.name), state, detail: "NATS", lack: "", kind: !answers || node.offline ? "lost" : "" };
}

// What the picture shows: the leader, or a note that there is none; the NATS servers; all other servers.
function parts(cluster) {
  const leads = (member) => member.role === "leader" && member.alive && member.name === cluster.leader;
  const leaders = cluster.members.filter(leads).map((each) => ofMember(each, true));
  const none = { name: "no leader", state: "publishers are refused", detail: "", lack: "", kind: "lost" };
  const nats = cluster.nats.map((node) => ofNats(node, cluster.log.copies > 0));
  return {
    leader: leaders[0] || none,
    nats: nats.length ? nats : [{ name: "NATS", state: "", detail: "the shared log", lack: "", kind: "" }],
    others: cluster.members.filter((each) => !leads(each)).map((each) => ofMember(each, false)),
  };
}

// The picture in words, for people who do not see it.
function words({ leader, nats, others }) {
  const said = (each) => [each.name, each.state, each.lack].filter(Boolean).join(", ");
  return `Leader: ${said(leader)}. Shared log on NATS: ${nats.map(said).join("; ")}. Other servers: ${others.map(said).join("; ") || "none"}.`;
}

// Write *text* and *end* into *group*, which is shown; shorten *text* until both fit into *width*.
function write(group, attributes, text, width, end = "") {
  const made = group.appendChild(svg("text", attributes, text + end));
  for (let most = text.length; most > 1 && made.getComputedTextLength() > width;) made.textContent = text.slice(0, --most) + "…" + end;
}

function drawNode(picture, each, x, y, width) {
  const group = picture.appendChild(svg("g", { class: `node ${each.kind}` }));
  group.append(svg("rect", { x, y, width, height: NODE, rx: 7 }), svg("title", {}, [each.name, each.state, each.detail, each.lack].filter(Boolean).join(", ")));
  write(group, { x: x + 10, y: y + 19, class: "name" }, each.name, width - 20, ` ${each.state}`);
  if (each.detail) write(group, { x: x + 10, y: y + 36 }, each.detail, width - 20);
}

function drawArrow(picture, from, to, each) {
  picture.append(svg("path", { d: `M${from.join(" ")}L${to.join(" ")}`, class: `arrow ${each.kind}`, "marker-end": "url(#arrow)" }));
}

// Side by side: the leader, the NATS servers, the others; an arrow to each of these has what that one lacks.
function drawWide(picture, { leader, nats, others }, width) {
  const step = NODE + GAP, rows = Math.max(1, nats.length, others.length), height = TOP + rows * step;
  const top = (listed, at) => TOP + ((rows - listed) * step) / 2 + at * step;
  const column = Math.round(width * 0.24), middle = Math.round(width * 0.3), right = Math.round(width * 0.76);
  const centre = TOP + (rows * step - GAP) / 2;
  drawNode(picture, leader, 1, top(1, 0), column);
  nats.forEach((each, at) => drawNode(picture, each, middle, top(nats.length, at), Math.round(width * 0.22)));
  drawArrow(picture, [column + 3, centre], [middle - 9, centre], leader);
  others.forEach((each, at) => {
    const y = top(others.length, at), from = middle + Math.round(width * 0.22) + 3;
    drawNode(picture, each, right, y, width - right - 1);
    drawArrow(picture, [from, y + NODE / 2], [right - 9, y + NODE / 2], each);
    write(picture, { x: (from + right - 9) / 2, y: y + NODE / 2 - 7, class: `lack ${each.kind}` }, each.lack, right - from - 12);
  });
  return height;
}

// One below the other, on a phone; what a server lacks stands below its arrow.
function drawNarrow(picture, { leader, nats, others }, width) {
  let y = 1;
  drawNode(picture, leader, 1, y, width - 2);
  drawArrow(picture, [width / 2, y + NODE + 2], [width / 2, y + NODE + 16], leader);
  y += NODE + 24;
  for (const each of nats) { drawNode(picture, each, 1, y, width - 2); y += NODE + 4; }
  for (const each of others) {
    drawArrow(picture, [24, y], [24, y + 16], each);
    write(picture, { x: 40, y: y + 15, class: `lack start ${each.kind}` }, each.lack, width - 44);
    drawNode(picture, each, 1, y + 24, width - 2);
    y += NODE + 30;
  }
  return y;
}

function draw() {
  const picture = $("cluster"), width = Math.max(280, Math.round(picture.parentElement.clientWidth));
  const found = parts(latest), text = words(found), now = JSON.stringify([width, found]);
  if (now === shown) return;
  shown = now;
  const marker = svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 4, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" });
  marker.append(svg("path", { d: "M0 0L8 4L0 8z" }));
  const title = svg("title", { id: "cluster-title" }, "Servers of the cluster"), description = svg("desc", { id: "cluster-words" }, text);
  picture.replaceChildren(title, description, marker);
  const height = width < NARROW ? drawNarrow(picture, found, width) : drawWide(picture, found, width);
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  picture.setAttribute("height", height);
}

// Show the state of a cluster, as the status has it; hide the picture of a server that is alone.
export function showCluster(cluster) {
  $("cluster-card").hidden = !cluster;
  if (!cluster) return;
  if (latest === null) new ResizeObserver(() => draw()).observe($("cluster").parentElement);
  latest = cluster;
  setText("cluster-summary", cluster.summary);
  draw();
}
