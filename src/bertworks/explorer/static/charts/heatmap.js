// A matrix with the names of its rows and columns.
import { h, s } from "../ui/dom.js";
import { formatFixed } from "../ui/format.js";
import { figure, measureText, responsive, shorten, svgText } from "./figure.js";
import { createImage } from "./pixels.js";
import { showTip } from "./tooltip.js";

// `value(row, column)` is a number from `low` to `max`. `showsNumbers` writes it into each cell.
// A click on a cell calls `onpick(row, column)`. Cells have at most `maxCellSize` pixels.
export function heatmap({
  title,
  caption,
  name,
  rows,
  columns,
  value,
  low = 0,
  max = 1,
  format = formatFixed,
  rowName = "",
  columnName = "",
  showsNumbers = false,
  onpick,
  maxCellSize = 34,
}) {
  const strength = (row, column) => (value(row, column) - low) / (max - low || 1);
  const describeCell = (row, column) =>
    `${rowName} ${rows[row]} → ${columnName} ${columns[column]}: ${format(value(row, column))}`
      .replaceAll("  ", " ")
      .trim();
  const map = { title, rows, columns, columnName, value, strength, format, showsNumbers };
  const draw = (width) => {
    const layout = computeLayout(map, maxCellSize, width);
    const svg = drawMatrix(map, layout);
    addPointer(svg, map, layout, describeCell, onpick);
    return svg;
  };
  return figure({
    title,
    caption,
    name,
    body: responsive(draw),
    columns: [rowName, ...columns.map((text) => ({ text, number: true }))],
    rows: () =>
      rows.map((label, row) => [
        label,
        ...columns.map((_, column) => Number(value(row, column).toPrecision(4))),
      ]),
  });
}

// Sizes in pixels: of a cell, its letters, and the space for the names of rows and columns.
function computeLayout({ rows, columns, columnName }, maxCellSize, width) {
  const freeWidth = width - maxCellSize * columns.length - 14;
  const maxLetters = Math.max(14, Math.min(30, Math.floor(freeWidth / measureText(1))));
  const left = measureText(Math.min(maxLetters, findLongest(rows))) + 12;
  const minCellSize = columns.length > 64 ? 8 : 13;
  const cell = Math.max(
    minCellSize,
    Math.min(maxCellSize, Math.floor((width - left - 2) / columns.length)),
  );
  const fontSize = Math.min(11, cell - 1);
  const isRotated = columns.some((label) => measureText(label.length, fontSize) > cell - 2);
  const labelHeight = isRotated
    ? measureText(Math.min(12, findLongest(columns)), fontSize) + 10
    : 18;
  const top = labelHeight + (columnName ? 16 : 0);
  return { cell, left, top, fontSize, isRotated, maxLetters };
}

const findLongest = (labels) => Math.max(...labels.map((label) => label.length));

function drawMatrix(map, layout) {
  const { title, rows, columns, columnName, showsNumbers } = map;
  const { cell, left, top } = layout;
  const width = left + cell * columns.length + 2;
  const height = top + cell * rows.length + 2;
  const place = { x: left, y: top, width: cell * columns.length, height: cell * rows.length };
  return s(
    "svg",
    {
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      style: { "max-width": "none" },
      role: "img",
      "aria-label": `${title}; the table below has the numbers`,
    },
    columnName && svgText(left, 11, columnName),
    drawColumnLabels(columns, layout),
    drawRowLabels(rows, layout),
    s("image", {
      href: drawPixels(map),
      ...place,
      preserveAspectRatio: "none",
      style: { "image-rendering": "pixelated" },
    }),
    s("rect", { ...place, fill: "none", stroke: "var(--grid)" }),
    showsNumbers && cell >= 22 && drawNumbers(map, layout),
  );
}

function drawColumnLabels(columns, { cell, left, top, fontSize, isRotated }) {
  const middle = (column) => left + cell * (column + 0.5);
  if (!isRotated)
    return columns.map((label, column) =>
      svgText(middle(column), top - 5, label, { "font-size": fontSize, "text-anchor": "middle" }),
    );
  return columns.map((label, column) =>
    svgText(0, 0, shorten(label, 12), {
      "font-size": fontSize,
      transform: `translate(${middle(column) + fontSize * 0.35} ${top - 4}) rotate(-90)`,
    }),
  );
}

function drawRowLabels(rows, { cell, left, top, fontSize, maxLetters }) {
  return rows.map((label, row) =>
    svgText(left - 6, top + cell * (row + 0.5) + fontSize * 0.35, shorten(label, maxLetters), {
      "font-size": fontSize,
      "text-anchor": "end",
    }),
  );
}

// The colours of the cells, as the address of an image.
function drawPixels({ rows, columns, strength }) {
  const strengths = rows.flatMap((_, row) => columns.map((__, column) => strength(row, column)));
  const canvas = h("canvas", { width: columns.length, height: rows.length });
  const image = createImage(rows.length, columns.length, strengths);
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas.toDataURL();
}

function drawNumbers({ rows, columns, value, strength, format }, { cell, left, top }) {
  const number = (row, column) =>
    svgText(
      left + cell * (column + 0.5),
      top + cell * (row + 0.5) + 4,
      format(value(row, column)),
      {
        "text-anchor": "middle",
        "font-size": Math.min(11, cell / 2.8),
        fill: Math.abs(strength(row, column)) > 0.6 ? "var(--paper)" : "var(--ink)",
      },
    );
  return rows.map((_, row) => columns.map((__, column) => number(row, column)));
}

function addPointer(svg, { rows, columns }, { cell, left, top }, describeCell, onpick) {
  // The row and column under the pointer; null outside of the cells.
  const findCell = (event) => {
    const box = svg.getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top - top) / cell);
    const column = Math.floor((event.clientX - box.left - left) / cell);
    const isInside = row >= 0 && column >= 0 && row < rows.length && column < columns.length;
    return isInside ? [row, column] : null;
  };
  svg.addEventListener("pointermove", (event) => {
    const place = findCell(event);
    showTip(event, place ? describeCell(...place) : "");
  });
  svg.addEventListener("pointerleave", (event) => showTip(event, ""));
  if (!onpick) return;
  svg.addEventListener("click", (event) => {
    const place = findCell(event);
    if (place) onpick(...place);
  });
}
