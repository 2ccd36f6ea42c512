// SPDX-License-Identifier: Apache-2.0
// Each panel of both dashboards, drawn anew every few seconds. The body's data attributes say what came of it.

import { color, heatmap, lines, sparkline } from "./charts.js";
import { alerts, range, series } from "./data.js";
import { format, UNIT_NAMES } from "./units.js";

const REFRESH_MS = 5000;
const HEIGHT = 150;

const escaped = (text) => text.replace(/[&<>"]/g, (char) => `&#${char.charCodeAt(0)};`);

function element(tag, parent, attributes = {}) {
  return parent.appendChild(Object.assign(document.createElement(tag), attributes));
}

// Places with a heading for each dashboard and row, and an empty section for each panel.
function layOut(panels) {
  let dashboard, row, grid;
  return panels.map((panel) => {
    if (panel.dashboard !== dashboard) {
      dashboard = panel.dashboard;
      element("h2", document.querySelector("main"), { textContent: dashboard });
      grid = element("div", document.querySelector("main"), { className: "grid" });
      row = undefined;
    }
    if (panel.row !== row) {
      row = panel.row;
      element("h3", grid, { textContent: row });
    }
    const section = element("section", grid, { className: "panel", title: panel.description });
    section.style.gridColumn = `span ${panel.width}`;
    return section;
  });
}

function legend(all, unit) {
  const rows = all.map(({ name, points }, at) => {
    const values = points.map(([, value]) => value);
    return `<tr><td><i style="background:${color(at)}"></i>${escaped(name)}</td><td>${format(values.at(-1), unit)}</td><td>${format(Math.max(...values), unit)}</td></tr>`;
  });
  return `<table><tr><th></th><th>last</th><th>max</th></tr>${rows.join("")}</table>`;
}

function stat(panel, all, width, span) {
  if (panel.options.textMode === "name") return all.map(({ name }) => `<div class="name">${escaped(name)}</div>`).join("");
  const value = all[0].points.at(-1)[1];
  const step = (panel.defaults.thresholds?.steps ?? []).findLast((each) => each.value === null || value >= each.value);
  const number = `<div class="number" style="color:var(--${step?.color ?? "text"})">${format(value, panel.defaults.unit)}</div>`;
  return number + sparkline(all[0], width, 28, span);
}

function drawing(panel, all, width, span) {
  const { unit, custom, thresholds, max } = panel.defaults;
  if (panel.kind === "stat") return stat(panel, all, width, span);
  if (panel.kind === "heatmap") return heatmap(all, width, HEIGHT, span);
  const look = {
    unit,
    isStacked: custom.stacking !== undefined,
    thresholds: custom.thresholdsStyle ? thresholds.steps : [],
    maximum: max,
  };
  return lines(all, width, HEIGHT, span, look) + legend(all, unit);
}

// Legends of the targets that have no data.
async function draw(panel, section, span) {
  const found = await Promise.all(panel.targets.map((target) => series(target, span)));
  const all = found.flat();
  const missing = panel.targets.filter((_, at) => !found[at].length).map(({ legend }) => legend);
  const unit = panel.kind === "heatmap" ? "s" : panel.defaults.unit;
  const heading = `<h4>${escaped(panel.title)} <span>${UNIT_NAMES[unit] ?? ""}</span></h4>`;
  const reason = panel.needs_npu_exporter ? "no data: needs npu-exporter" : `no data: ${missing.map(escaped).join(", ")}`;
  const note = missing.length ? `<div class="none">${reason}</div>` : "";
  section.innerHTML = heading + (all.length ? drawing(panel, all, section.clientWidth - 22, span) : "") + note;
  section.classList.toggle("missing", missing.length > 0 && !panel.needs_npu_exporter);
  return panel.needs_npu_exporter ? [] : missing.map((each) => `${panel.dashboard} / ${panel.title} / ${each}`);
}

async function showAlerts() {
  const found = await alerts();
  const names = found.map(({ labels, state }) => `${labels.alertname} (${state})`);
  document.querySelector("#alerts").textContent = names.length ? `Alerts: ${names.join(", ")}` : "No alert is pending or firing.";
}

async function drawAll(panels, sections) {
  const span = await range();
  await showAlerts();
  const empty = (await Promise.all(panels.map((panel, at) => draw(panel, sections[at], span)))).flat();
  const height = document.documentElement.scrollHeight;
  Object.assign(document.body.dataset, { panels: panels.length, height, empty: JSON.stringify(empty) });
}

const panels = await (await fetch("panels")).json();
const sections = layOut(panels);
for (;;) {
  await drawAll(panels, sections).catch((error) => (document.querySelector("#alerts").textContent = `${error}`));
  if (location.search === "?once") break;
  await new Promise((resolve) => setTimeout(resolve, REFRESH_MS));
}
