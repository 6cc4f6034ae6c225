// Charts: messages per second as stacked areas, one per protocol, for five minutes, an hour or a day.
import { $, colourOf, css, element } from "./dom.js";
import { clock, count } from "./format.js";

// The spans: their length, the time of one sample, and the distance of marks on the axis, in seconds.
export const SPANS = {
  "5min": { length: 300, step: 1, mark: 60 },
  "1h": { length: 3600, step: 10, mark: 600 },
  "24h": { length: 86400, step: 300, mark: 14400 },
};

export class Chart {
  // source() returns { span, samples }; side is the name of the rates in a sample.
  constructor(id, side, source) {
    this.canvas = $(id);
    this.legend = this.canvas.parentElement.querySelector(".legend");
    this.side = side;
    this.source = source;
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
    const { span, samples } = this.source();
    const pen = this.canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    const rate = (sample, name) => (sample[this.side][name] || [0])[0];
    const names = [...new Set(samples.flatMap((sample) => Object.keys(sample[this.side])))]
      .filter((name) => samples.some((sample) => rate(sample, name) > 0)).sort();
    const totals = samples.map((sample) => names.reduce((sum, name) => sum + rate(sample, name), 0));
    const most = axisMaximum(totals);
    const left = 44, right = 6, top = 12, bottom = 20;
    const last = samples.length ? samples[samples.length - 1].time : Date.now() / 1000;
    const frame = {
      left, top, right: width - right, bottom: height - bottom,
      x: (time) => width - right - (last - time) / SPANS[span].length * (width - left - right),
      y: (value) => height - bottom - Math.min(value, most) / most * (height - top - bottom),
    };
    drawAxes(pen, frame, most, span, last);
    let floor = samples.map(() => 0);
    for (const name of names) {
      const upper = samples.map((sample, i) => floor[i] + rate(sample, name));
      drawArea(pen, frame, samples, floor, upper, css(colourOf(name)), SPANS[span].step);
      floor = upper;
    }
    drawSpikes(pen, frame, samples, totals, most);
    const shown = this.drawPointer(pen, frame, samples);
    this.showLegend(names, shown, rate, span);
  }

  // Draw a line through the sample below the pointer; return that sample, or the last one.
  drawPointer(pen, frame, samples) {
    if (this.at === null || !samples.length) return samples[samples.length - 1];
    const distance = (sample) => Math.abs(frame.x(sample.time) - this.at);
    const shown = samples.reduce((best, sample) => (distance(sample) < distance(best) ? sample : best));
    pen.strokeStyle = css("--ink");
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(Math.round(frame.x(shown.time)) + .5, frame.top);
    pen.lineTo(Math.round(frame.x(shown.time)) + .5, frame.bottom);
    pen.stroke();
    return shown;
  }

  showLegend(names, shown, rate, span) {
    const entries = names.map((name) => {
      const entry = element("li");
      const swatch = element("i", undefined, "swatch");
      swatch.style.background = `var(${colourOf(name)})`;
      entry.append(swatch, name + " ", element("b", count(rate(shown, name))));
      return entry;
    });
    if (!names.length) entries.push(element("li", "no messages in this time"));
    else if (this.at !== null) entries.push(element("li", clock(shown.time, span), "when"));
    const made = element("ul");
    made.append(...entries);
    if (made.textContent !== this.legend.textContent) this.legend.replaceChildren(...made.childNodes);
  }
}

function drawAxes(pen, frame, most, span, last) {
  pen.font = "11px system-ui, sans-serif";
  pen.lineWidth = 1;
  pen.strokeStyle = css("--line");
  pen.fillStyle = css("--dim");
  pen.textAlign = "right";
  for (let i = 0; i <= 4; i += 1) {
    const height = Math.round(frame.y(most * i / 4)) + .5;
    pen.beginPath(); pen.moveTo(frame.left, height); pen.lineTo(frame.right, height); pen.stroke();
    if (i % 2 === 0) pen.fillText(count(most * i / 4), frame.left - 7, height + 3.5);
  }
  const { length, mark } = SPANS[span];
  const newest = span === "5min" ? last : Math.floor((last - zone(last)) / mark) * mark + zone(last);
  let free = frame.right + 4; // marks go from right to left, and none may touch the one before
  for (let back = 0; back <= length; back += mark) {
    const text = span !== "5min" ? clock(newest - back, span) : back ? `−${back / 60} min` : "now";
    const wide = pen.measureText(text).width;
    const end = Math.min(frame.x(newest - back) + wide / 2, frame.right);
    if (end > free || end - wide < 0) continue;
    pen.fillText(text, end, frame.bottom + 15);
    free = end - wide - 12;
  }
}

// The seconds by which local time is behind UTC, so that marks are at full local hours.
function zone(time) { return new Date(time * 1000).getTimezoneOffset() * 60; }

// Fill the area between floor and upper.  Where the protocol has no messages there is nothing to see, not even a line;
// where samples are missing, because the page or the server was not there, the area ends.
function drawArea(pen, frame, samples, floor, upper, colour, step) {
  const gap = Math.max(4, 3 * step);
  let first = 0;
  const close = (end) => {
    const part = samples.slice(first, end);
    if (part.length) {
      const begin = frame.x(part[0].time - step); // a sample covers the time before it
      pen.beginPath();
      pen.lineTo(begin, frame.y(upper[first]));
      part.forEach((sample, i) => pen.lineTo(frame.x(sample.time), frame.y(upper[first + i])));
      for (let i = part.length - 1; i >= 0; i -= 1) pen.lineTo(frame.x(part[i].time), frame.y(floor[first + i]));
      pen.lineTo(begin, frame.y(floor[first]));
      pen.closePath();
      pen.globalAlpha = .82;
      pen.fillStyle = colour;
      pen.fill();
      pen.globalAlpha = 1;
    }
    first = end;
  };
  pen.save();
  pen.beginPath();
  pen.rect(frame.left, 0, frame.right - frame.left, frame.bottom + 1);
  pen.clip();
  samples.forEach((sample, i) => { if (i && sample.time - samples[i - 1].time > gap) close(i); });
  close(samples.length);
  pen.restore();
}

// Mark the samples that exceed the axis, and write the value of the largest one.
function drawSpikes(pen, frame, samples, totals, most) {
  const beyond = totals.map((total, i) => i).filter((i) => totals[i] > most && frame.x(samples[i].time) > frame.left);
  if (!beyond.length) return;
  pen.fillStyle = css("--ink");
  for (const i of beyond) {
    const x = frame.x(samples[i].time);
    pen.beginPath(); pen.moveTo(x - 4, frame.top); pen.lineTo(x + 4, frame.top); pen.lineTo(x, frame.top - 6); pen.fill();
  }
  const highest = beyond.reduce((best, i) => (totals[i] > totals[best] ? i : best));
  const x = frame.x(samples[highest].time);
  pen.font = "600 11px system-ui, sans-serif";
  pen.textAlign = x < frame.left + 60 ? "left" : "right";
  pen.fillText(count(totals[highest]), x + (pen.textAlign === "left" ? 8 : -8), frame.top - 2);
}

// Return the end of the axis.  A few samples far above all others go beyond it, or the others could not be seen.
export function axisMaximum(totals) {
  const present = totals.filter((total) => total > 0).sort((a, b) => a - b);
  if (!present.length) return 1;
  const highest = present[present.length - 1];
  const usual = present[Math.floor((present.length - 1) * .95)];
  return present.length >= 20 && highest > 3 * usual ? roundUp(1.5 * usual) : roundUp(highest);
}

// Round n up to 1, 2, 4, 6 or 8 times a power of ten, and to at least 1.
function roundUp(n) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, n)));
  return power * ([1, 2, 4, 6, 8, 10].find((each) => each * power >= n) || 10);
}
