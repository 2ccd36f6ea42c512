// SPDX-License-Identifier: Apache-2.0
// SVG of a panel's series: lines, stacked areas, a heatmap of buckets, a small line under a number.

import { format } from "./units.js";

const COLORS = ["#2f6fde", "#e07b00", "#2b8a3e", "#c92a2a", "#7b4fd0", "#0b8f9c", "#b0487f", "#6b7482"];
const LEFT = 60;
const BOTTOM = 16;
const TOP = 10;

export const color = (at) => COLORS[at % COLORS.length];

const svg = (width, height, body) => `<svg viewBox="0 0 ${width} ${height}" height="${height}">${body}</svg>`;
const label = (x, y, text, anchor) => `<text x="${x}" y="${y}" text-anchor="${anchor}">${text}</text>`;
const clock = (time) => new Date(time * 1000).toLocaleTimeString("en-GB");

// 1, 2 or 5 times a power of ten, of KiB, MiB or GiB where they are bytes, so that few lines reach up to the maximum.
function niceStep(maximum, unit) {
  const base = unit === "bytes" ? 2 ** (10 * Math.floor(Math.log2(maximum) / 10)) : 1;
  const power = 10 ** Math.floor(Math.log10(maximum / base / 4));
  return base * power * [1, 2, 5, 10].find((factor) => base * power * factor >= maximum / 4);
}

function timeAxis(width, height, { start, end }) {
  return [0, 0.5, 1]
    .map((share, at) => label(LEFT + share * (width - LEFT), height - 3, clock(start + share * (end - start)), ["start", "middle", "end"][at]))
    .join("");
}

// Where the points stand, each series on top of the last where they are stacked.
function stack(all, isStacked) {
  const below = new Map();
  return all.map(({ points }) =>
    points.map(([time, value]) => {
      const base = isStacked ? (below.get(time) ?? 0) : 0;
      below.set(time, base + value);
      return [time, base + value, base];
    }),
  );
}

// Runs without a hole in time.
function runs(points, step) {
  const found = [];
  points.forEach((point, at) => {
    if (at && point[0] - points[at - 1][0] < 1.5 * step) found.at(-1).push(point);
    else found.push([point]);
  });
  return found;
}

export function lines(all, width, height, span, { unit, isStacked, thresholds = [], maximum }) {
  const stacked = stack(all, isStacked);
  const highest = maximum ?? Math.max(...stacked.flat().map(([, value]) => value), 0);
  const step = niceStep(highest || 1, unit);
  const top = maximum ?? step * Math.ceil((highest || 1) / step);
  const x = (time) => LEFT + ((time - span.start) / (span.end - span.start)) * (width - LEFT);
  const y = (value) => TOP + (1 - Math.min(Math.max(value / top, 0), 1)) * (height - TOP - BOTTOM);
  let body = timeAxis(width, height, span);
  for (let value = 0; value <= top * 1.001; value += step) {
    body += `<line class="gridline" x1="${LEFT}" x2="${width}" y1="${y(value)}" y2="${y(value)}"/>`;
    body += label(LEFT - 6, y(value) + 3, format(value, unit), "end");
  }
  for (const { value, color: name } of thresholds) {
    if (value === null || value > top) continue;
    body += `<line x1="${LEFT}" x2="${width}" y1="${y(value)}" y2="${y(value)}" stroke="var(--${name})" stroke-dasharray="4 3"/>`;
  }
  stacked.forEach((points, at) => {
    for (const run of runs(points, span.step)) {
      const upper = run.map(([time, value]) => `${x(time).toFixed(1)},${y(value).toFixed(1)}`);
      const lower = run.map(([time, , base]) => `${x(time).toFixed(1)},${y(base).toFixed(1)}`).reverse();
      if (run.length === 1) body += `<circle cx="${x(run[0][0])}" cy="${y(run[0][1])}" r="1.5" fill="${color(at)}"/>`;
      body += `<polygon points="${[...upper, ...lower].join(" ")}" fill="${color(at)}" opacity="${isStacked ? 0.3 : 0.08}"/>`;
      body += `<polyline points="${upper.join(" ")}" fill="none" stroke="${color(at)}" stroke-width="1.4"/>`;
    }
  });
  return svg(width, height, body);
}

// all: cumulative buckets with a label le.
export function heatmap(all, width, height, span) {
  const edge = ({ labels }) => (labels.le === "+Inf" ? Infinity : Number(labels.le));
  const sorted = [...all].sort((a, b) => edge(a) - edge(b));
  const rows = sorted.map(({ labels, points }, at) => {
    const below = new Map(at ? sorted[at - 1].points : []);
    return { le: labels.le, cells: points.map(([time, value]) => [time, value - (below.get(time) ?? 0)]) };
  });
  const filled = rows.map(({ cells }) => cells.some(([, value]) => value > 1e-9));
  const shown = rows.slice(Math.max(0, filled.indexOf(true) - 1), filled.lastIndexOf(true) + 2);
  const most = Math.max(...shown.flatMap(({ cells }) => cells.map(([, value]) => value)), 1e-9);
  const cellHeight = (height - TOP - BOTTOM) / shown.length;
  const cellWidth = ((width - LEFT) * span.step) / (span.end - span.start);
  let body = timeAxis(width, height, span);
  shown.forEach(({ le, cells }, at) => {
    const y = height - BOTTOM - (at + 1) * cellHeight;
    if (at % Math.ceil(shown.length / 8) === 0) body += label(LEFT - 6, y + cellHeight / 2 + 3, le === "+Inf" ? "more" : `≤ ${format(Number(le), "s")}`, "end");
    for (const [time, value] of cells) {
      if (value <= 1e-9) continue;
      const x = LEFT + ((time - span.start) / (span.end - span.start)) * (width - LEFT) - cellWidth;
      body += `<rect x="${Math.max(LEFT, x)}" y="${y}" width="${cellWidth}" height="${cellHeight - 1}" fill="#e07b00" opacity="${0.08 + 0.92 * Math.sqrt(value / most)}"/>`;
    }
  });
  return svg(width, height, body);
}

export function sparkline({ points }, width, height, span) {
  const top = Math.max(...points.map(([, value]) => value)) || 1;
  const at = ([time, value]) => `${((time - span.start) / (span.end - span.start)) * width},${height - 1 - (value / top) * (height - 4)}`;
  return svg(width, height, `<polyline points="${points.map(at).join(" ")}" fill="none" stroke="${COLORS[0]}" opacity="0.6"/>`);
}
