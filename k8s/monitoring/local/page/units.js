// SPDX-License-Identifier: Apache-2.0
// A number in a panel's unit, short.

const SI = [[1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];
const BINARY = [[2 ** 30, " GiB"], [2 ** 20, " MiB"], [2 ** 10, " KiB"], [1, " B"]];
const SECONDS = [[3600, " h"], [60, " min"], [1, " s"], [1e-3, " ms"], [1e-6, " µs"]];

function digits(value) {
  return Number(value.toPrecision(3)).toLocaleString("en", { maximumSignificantDigits: 3 });
}

function scaled(value, steps) {
  if (value === 0) return "0";
  const [factor, name] = steps.find(([factor]) => Math.abs(value) >= factor) ?? steps.at(-1);
  return digits(value / factor) + name;
}

const FORMATS = {
  s: (value) => scaled(value, SECONDS),
  bytes: (value) => scaled(value, BINARY),
  percentunit: (value) => `${digits(100 * value)}%`,
  percent: (value) => `${digits(value)}%`,
  reqps: (value) => `${digits(value)}/s`,
  celsius: (value) => `${digits(value)} °C`,
  watt: (value) => `${digits(value)} W`,
};

export const UNIT_NAMES = { s: "seconds", bytes: "bytes", percentunit: "percent", percent: "percent", reqps: "calls per second", celsius: "°C", watt: "W" };

export function format(value, unit) {
  return FORMATS[unit]?.(value) ?? (Math.abs(value) < 1 ? digits(value) : scaled(value, SI));
}
