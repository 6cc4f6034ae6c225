// Helpers for the document.  Text from peers (stream names, addresses, payloads) is inserted as text, never as markup.

export const $ = (id) => document.getElementById(id);

export function setText(id, text) { if ($(id).textContent !== text) $(id).textContent = text; }

export function element(tag, text, kind) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

// Each protocol has a colour of its own, whichever others are there; unknown ones share the last two.
const COLOURS = { figg: 0, http: 1, lumberjack: 2, relink: 3, backbone: 4, eventbus: 5 };

export function colourOf(protocol) {
  const known = COLOURS[protocol];
  return `--c${known === undefined ? 6 + (protocol.length % 2) : known}`;
}

export function css(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

export function protocolLabel(name, protocol = name) {
  const made = element("span");
  const swatch = element("i", undefined, "swatch");
  swatch.style.background = `var(${colourOf(protocol)})`;
  made.append(swatch, name);
  return made;
}
