// Points of a plane with their names.
import { s } from "../ui/dom.js";
import { SERIES } from "./colours.js";
import { figure, measureText, responsive, shorten, svgText } from "./figure.js";

const LINE_HEIGHT = 12;

// Points are { x, y, text, group }; the points of a group have one colour.
export function scatter({ title, caption, name, points }) {
  const roundValue = (value) => Number(value.toPrecision(4));
  return figure({
    title,
    caption,
    name,
    body: responsive((width) => drawPlane(title, points, width)),
    columns: ["Text", { text: "x", number: true }, { text: "y", number: true }],
    rows: () => points.map(({ text, x, y }) => [text, roundValue(x), roundValue(y)]),
  });
}

function drawPlane(title, points, width) {
  const height = Math.min(440, Math.max(240, Math.round(width * 0.6)));
  const scaleX = createScale(
    points.map(({ x }) => x),
    20,
    width - 20,
  );
  const scaleY = createScale(
    points.map(({ y }) => y),
    height - 20,
    26,
  );
  const placeLabel = createLabelPlacer(width, height);
  return s(
    "svg",
    {
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      role: "img",
      "aria-label": `${title}; the table below has the coordinates`,
    },
    s("rect", {
      x: 0.5,
      y: 0.5,
      width: width - 1,
      height: height - 1,
      fill: "none",
      stroke: "var(--grid)",
      rx: 6,
    }),
    points.map((point) => {
      const [cx, cy] = [scaleX(point.x), scaleY(point.y)];
      const label = shorten(point.text, Math.max(8, Math.floor(width / 2 / 6.4)));
      return [
        s("circle", { cx, cy, r: 5, fill: `var(--${SERIES[point.group % SERIES.length]})` }),
        placeLabel(cx, cy, label),
      ];
    }),
  );
}

function createScale(values, start, end) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return (value) => start + (end - start) * (high > low ? (value - low) / (high - low) : 0.5);
}

// Labels are next to their points, on the side with more space, and do not cover one another.
function createLabelPlacer(width, height) {
  const boxes = [];
  return (cx, cy, label) => {
    const isLeft = cx > width / 2;
    const labelWidth = measureText(label.length);
    const left = isLeft ? cx - 8 - labelWidth : cx + 8;
    const right = left + labelWidth;
    let y = cy + 4;
    const isCovered = () =>
      boxes.some(
        (box) => Math.abs(box.y - y) < LINE_HEIGHT && left < box.right && right > box.left,
      );
    for (let tries = 0; isCovered() && tries < 12; tries++)
      y += y > height - 16 ? -LINE_HEIGHT * (tries + 1) : LINE_HEIGHT;
    boxes.push({ left, right, y });
    return svgText(isLeft ? cx - 8 : cx + 8, y, label, {
      "text-anchor": isLeft ? "end" : "start",
      fill: "var(--ink)",
    });
  };
}
