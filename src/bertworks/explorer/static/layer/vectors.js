// Vectors as strips of colour.
import { createImage } from "../charts/pixels.js";
import { showTip } from "../charts/tooltip.js";
import { h } from "../ui/dom.js";
import { formatCount, formatPercent } from "../ui/format.js";

const NUM_WRITTEN = 3; // numbers of a vector that are written next to its strip

// A number with about three digits.
export function formatShort(value) {
  const size = Math.abs(value);
  const digits = [99.95, 9.995, 0.0995, 0.00995].filter((limit) => size < limit).length;
  return (size < 0.00005 ? "0" : value.toFixed(digits)).replace("-", "−");
}

// The largest absolute value.
export const findLargest = (...vectors) =>
  Math.max(
    1e-9,
    ...vectors.map((vector) =>
      vector.reduce((largest, value) => Math.max(largest, Math.abs(value)), 0),
    ),
  );

// All numbers of a vector side by side: blue is positive, orange negative, strong is large.
export function strip(values, scale = findLargest(values), name = "") {
  const range = `from ${formatShort(Math.min(...values))} to ${formatShort(Math.max(...values))}`;
  const canvas = h("canvas", {
    class: "vector-strip",
    role: "img",
    width: values.length,
    height: 1,
    "aria-label": `${name ? `${name}: ` : ""}${formatCount(values.length, "number")} ${range}`,
  });
  const strengths = Array.from(
    values,
    (value) => Math.sign(value) * Math.sqrt(Math.abs(value) / scale),
  );
  canvas.getContext("2d").putImageData(createImage(1, values.length, strengths), 0, 0);
  canvas.addEventListener("pointermove", (event) => {
    const { left, width } = canvas.getBoundingClientRect();
    const index = Math.floor(((event.clientX - left) / width) * values.length);
    const last = values.length - 1;
    showTip(event, index < 0 ? "" : describeNumber(values, Math.min(last, index)));
  });
  canvas.addEventListener("pointerleave", (event) => showTip(event, ""));
  return canvas;
}

const describeNumber = (values, index) => `number ${index + 1}: ${formatShort(values[index])}`;

// Vectors under each other: [name, values], with one scale, and their first numbers.
export function vectorStrips(rows) {
  const vectors = rows.map(([, values]) => values);
  const scale = findLargest(...vectors);
  const strips = rows.map(([name, values]) => strip(values, scale, name));
  addReadingKeys(strips, vectors);
  return h(
    "div",
    { class: "vector-strips" },
    rows.map(([name, values], row) =>
      h(
        "div",
        { class: "vector-row" },
        h("span", { class: "name" }, name),
        strips[row],
        firstNumbers(values),
      ),
    ),
  );
}

const firstNumbers = (values) =>
  h(
    "span",
    { class: "first mono" },
    Array.from(values.slice(0, NUM_WRITTEN), formatShort).join("  "),
    values.length > NUM_WRITTEN ? "  …" : "",
  );

// Make strips under each other one stop of the tab key; arrow keys read their numbers.
function addReadingKeys(strips, vectors) {
  const positions = strips.map(() => 0);

  function move(row, position) {
    const values = vectors[row];
    positions[row] = Math.max(0, Math.min(values.length - 1, position));
    strips[row].setAttribute("aria-valuenow", positions[row] + 1);
    strips[row].setAttribute("aria-valuetext", describeNumber(values, positions[row]));
  }

  function showNumber(row) {
    const { left, top, width } = strips[row].getBoundingClientRect();
    const clientX = left + (width * (positions[row] + 0.5)) / vectors[row].length;
    showTip({ clientX, clientY: top }, describeNumber(vectors[row], positions[row]));
  }

  function focusStrip(canvas) {
    for (const other of strips) other.tabIndex = other === canvas ? 0 : -1;
    canvas.focus();
  }

  function press(event, row) {
    const { length } = vectors[row];
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -length, End: length }[event.key];
    const rowStep = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const neighbour = rowStep && strips[row + rowStep];
    if (step === undefined && !neighbour) return;
    event.preventDefault();
    if (neighbour) {
      focusStrip(neighbour);
      return;
    }
    move(row, positions[row] + step);
    showNumber(row);
  }

  for (const [row, canvas] of strips.entries()) {
    const attributes = {
      role: "slider",
      tabindex: row === 0 ? 0 : -1,
      "aria-valuemin": 1,
      "aria-valuemax": vectors[row].length,
      "aria-orientation": "horizontal",
    };
    for (const [name, value] of Object.entries(attributes)) canvas.setAttribute(name, value);
    move(row, 0);
    canvas.addEventListener("focus", () => canvas.matches(":focus-visible") && showNumber(row));
    canvas.addEventListener("blur", (event) => showTip(event, ""));
    canvas.addEventListener("keydown", (event) => press(event, row));
  }
}

// A percentage on a bar of its size.
export const shareBar = (value) =>
  h(
    "span",
    { class: "share", style: { "--share": `${(100 * value).toFixed(1)}%` } },
    formatPercent(value),
  );
