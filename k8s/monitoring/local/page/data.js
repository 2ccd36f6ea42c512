// SPDX-License-Identifier: Apache-2.0
// Prometheus' answers as series of finite points. Knows no panel's look.

const MAX_SPAN_S = 300;
const NUM_STEPS = 150;

async function ask(path, parameters) {
  const response = await fetch(`api/v1/${path}?${new URLSearchParams(parameters)}`);
  const body = await response.json();
  if (body.status !== "success") throw new Error(body.error);
  return body.data;
}

// The last minutes, or less where the first scrape is younger.
export async function range() {
  const end = Date.now() / 1000;
  const { result } = await ask("query", { query: "min(min_over_time(timestamp(up)[5m:2s]))", time: end });
  const first = result.length ? Number(result[0].value[1]) : end;
  const start = Math.max(end - MAX_SPAN_S, Math.min(first, end - 10));
  return { start, end, step: Math.max(1, (end - start) / NUM_STEPS) };
}

export async function alerts() {
  return (await ask("alerts", {})).alerts;
}

function named(legend, labels) {
  return legend.replace(/{{\s*(\w+)\s*}}/g, (_, label) => labels[label] ?? "").trim();
}

// Of a target: its series with a name, labels and points; none where nothing finite came.
export async function series(target, { start, end, step }) {
  const { result } = await ask("query_range", { query: target.expr, start, end, step });
  return result
    .map(({ metric, values }) => ({
      name: named(target.legend, metric),
      labels: metric,
      points: values.map(([time, value]) => [time, Number(value)]).filter(([, value]) => Number.isFinite(value)),
    }))
    .filter(({ points }) => points.length);
}
