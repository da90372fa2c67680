// Lines over layers or steps.
import { s } from "../ui/dom.js";
import { formatFixed } from "../ui/format.js";
import { SERIES } from "./colours.js";
import { figure, measureText, responsive, svgText } from "./figure.js";
import { showTip } from "./tooltip.js";

const MARGIN = { left: 48, right: 12, top: 12, bottom: 34 };
const PLOT_HEIGHT = 144;
const LEGEND_ROW = 18;
const LABEL_WIDTH = 44; // from one label of the x-axis to the next, at least

// Series are { name, values, colour, dashed }; values may be null.
export function lineChart({ title, caption, name, x, xName, series, low, high, format }) {
  const values = series.flatMap((line) => line.values).filter((value) => value !== null);
  const bottom = low ?? Math.min(...values);
  const top = Math.max(high ?? Math.max(...values), bottom + 1e-6);
  const chart = { title, x, xName, series, bottom, top, format: format ?? formatFixed };
  const roundValue = (value) => (value === null ? "" : Number(value.toPrecision(5)));
  return figure({
    title,
    caption,
    name,
    body: responsive((width) => drawChart(chart, width)),
    columns: [xName, ...series.map((line) => ({ text: line.name, number: true }))],
    rows: () =>
      x.map((label, index) => [label, ...series.map((line) => roundValue(line.values[index]))]),
  });
}

function drawChart(chart, width) {
  const { title, x, xName, series } = chart;
  const legend = placeLegend(series, width);
  const height = MARGIN.top + MARGIN.bottom + PLOT_HEIGHT + legend.height;
  const plotWidth = width - MARGIN.left - MARGIN.right;
  const scale = {
    x: (index) => MARGIN.left + (plotWidth * index) / Math.max(1, x.length - 1),
    y: (value) =>
      height - MARGIN.bottom - (PLOT_HEIGHT * (value - chart.bottom)) / (chart.top - chart.bottom),
  };
  const svg = s(
    "svg",
    {
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      role: "img",
      "aria-label": `${title}; the table below has the numbers`,
    },
    drawLegend(series, legend.places),
    drawGrid(chart, scale, width),
    drawLabels(x, scale, width, height),
    svgText(width - MARGIN.right, height - 2, xName, { "text-anchor": "end" }),
    series.map((line, index) => drawLine(line, getColour(series, index), scale)),
  );
  svg.addEventListener("pointermove", (event) => {
    const offset = event.clientX - svg.getBoundingClientRect().left - MARGIN.left;
    const index = Math.round((offset / plotWidth) * (x.length - 1));
    showTip(event, x[index] === undefined ? "" : describePoint(chart, index));
  });
  svg.addEventListener("pointerleave", (event) => showTip(event, ""));
  return svg;
}

const getColour = (series, index) =>
  `var(--${series[index].colour ?? SERIES[index % SERIES.length]})`;

function drawGrid({ bottom, top, format }, scale, width) {
  return computeTicks(bottom, top).map((tick) => [
    s("line", {
      x1: MARGIN.left,
      x2: width - MARGIN.right,
      y1: scale.y(tick),
      y2: scale.y(tick),
      stroke: "var(--grid)",
    }),
    svgText(MARGIN.left - 6, scale.y(tick) + 4, format(tick), { "text-anchor": "end" }),
  ]);
}

// At most six round numbers in a range.
function computeTicks(low, high) {
  const step = [1, 2, 5, 10]
    .map((factor) => factor * 10 ** Math.floor(Math.log10((high - low) / 4 || 1)))
    .find((candidate) => (high - low) / candidate <= 5);
  const first = Math.ceil(low / step);
  const ticks = Array.from({ length: 12 }, (_, index) => (first + index) * step);
  return ticks.filter((tick) => tick <= high + 1e-9);
}

function drawLabels(x, scale, width, height) {
  const maxLabels = Math.max(2, Math.floor((width - MARGIN.left) / LABEL_WIDTH));
  const interval = Math.ceil(x.length / maxLabels);
  return x.map(
    (label, index) =>
      index % interval === 0 &&
      svgText(scale.x(index), height - 17, label, { "text-anchor": "middle" }),
  );
}

function drawLine({ values, dashed }, stroke, scale) {
  const points = values
    .map((value, index) => value !== null && [scale.x(index), scale.y(value)])
    .filter(Boolean);
  return [
    s("polyline", {
      points: points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" "),
      fill: "none",
      stroke,
      "stroke-width": 1.8,
      "stroke-linejoin": "round",
      "stroke-dasharray": dashed ? "5 4" : null,
    }),
    points.map(([cx, cy]) => s("circle", { cx, cy, r: 2.6, fill: stroke })),
  ];
}

function describePoint({ x, xName, series, format }, index) {
  const numbers = series.map(({ name, values }) => {
    const number = values[index] === null ? "–" : format(values[index]);
    return series.length > 1 ? `${name} ${number}` : number;
  });
  return `${xName} ${x[index]} · ${numbers.join(" · ")}`;
}

// The place of each name, and the height of all; one series needs no legend.
function placeLegend(series, width) {
  if (series.length < 2) return { places: [], height: 0 };
  let [x, row] = [0, 0];
  const places = series.map(({ name }) => {
    const nameWidth = 26 + measureText(name.length);
    if (x > 0 && x + nameWidth > width) [x, row] = [0, row + 1];
    const place = [x, LEGEND_ROW * row];
    x += nameWidth + 10;
    return place;
  });
  return { places, height: LEGEND_ROW * (row + 1) };
}

function drawLegend(series, places) {
  return places.map(([x, y], index) => [
    s("line", {
      x1: x,
      x2: x + 16,
      y1: 8 + y,
      y2: 8 + y,
      stroke: getColour(series, index),
      "stroke-width": 2.4,
      "stroke-dasharray": series[index].dashed ? "5 4" : null,
    }),
    svgText(x + 21, 12 + y, series[index].name, { fill: "var(--ink)" }),
  ]);
}
