// Attention as lines from each word (left) to the words that it attends to (right).
import { getRgb } from "../charts/colours.js";
import { saveButtons } from "../export.js";
import { addArrowKeys, button } from "../ui/controls.js";
import { createId, h, s } from "../ui/dom.js";
import { formatPercent } from "../ui/format.js";

const ROW_HEIGHT = 24;
const NUM_LEVELS = 20;
const SAVED_PICTURE = { left: 120, width: 560 };

// `matrix` is one of `decodeWeights`. `from` and `to` are the pressed words, or -1: with them, only
// their lines are shown; while the pointer is at a word, only its lines. `onpress(side, index)` is
// called when a word is pressed.
export function attentionLines(matrix, title, name, { from = -1, to = -1, onpress }) {
  const { names, value } = matrix;
  const canvas = h("canvas", { "aria-hidden": "true" });
  const description = h("p", { class: "small soft", "aria-live": "polite" });
  const canvasHolder = h("div", { class: "between" }, canvas);
  let selection = { from, to };

  function select(words) {
    selection = words;
    drawLines(canvas, matrix, selection, canvasHolder.clientWidth);
    const { from: row, to: column } = selection;
    tintButtons(toButtons, row >= 0 && ((index) => value(row, index)));
    tintButtons(fromButtons, column >= 0 && ((index) => value(index, column)));
    description.textContent = describeSelection(matrix, selection);
  }

  const wordButtons = (side) => {
    const pressedIndex = side === "from" ? from : to;
    return addArrowKeys(
      h(
        "div",
        {
          class: `tokens ${side}`,
          role: "group",
          "aria-label": side === "from" ? "Attending words" : "Attended words",
        },
        names.map((word, index) => {
          const point = () => select(side === "from" ? { from: index, to } : { from, to: index });
          return button(word, () => onpress(side, index), {
            onpointerenter: point,
            onfocus: point,
            "aria-pressed": index === pressedIndex,
          });
        }),
      ),
    );
  };
  const [fromButtons, toButtons] = [wordButtons("from"), wordButtons("to")];

  let isDescribed = false;
  new ResizeObserver(([entry]) => {
    if (!entry.contentRect.width) return;
    drawLines(canvas, matrix, selection, entry.contentRect.width);
    if (!isDescribed) select(selection);
    isDescribed = true;
  }).observe(canvasHolder);

  const id = createId("lines");
  return h(
    "figure",
    { "aria-labelledby": id },
    h("h3", { id }, title),
    description,
    h(
      "div",
      { class: "lines", onpointerleave: () => select({ from, to }) },
      fromButtons,
      canvasHolder,
      toButtons,
    ),
    saveButtons(name, {
      svg: () => drawSavedLines(matrix, selection),
      csv: () => formatMatrix(matrix),
    }),
  );
}

const isSelected = ({ from, to }, row, column) =>
  (from < 0 || from === row) && (to < 0 || to === column);

// The opacity of a line; weights below 2 % have none.
const computeOpacity = (weight) => (weight < 0.02 ? 0 : Math.min(1, weight ** 0.7));

const getRowCenter = (index) => (index + 0.5) * ROW_HEIGHT;

function drawLines(canvas, { count, value }, selection, width) {
  const context = resizeCanvas(canvas, width, count * ROW_HEIGHT);
  context.lineWidth = 2;
  const middle = width / 2;
  // Lines of nearly the same opacity are drawn together.
  const levels = Array.from({ length: NUM_LEVELS }, () => new Path2D());
  for (let row = 0; row < count; row++)
    for (let column = 0; column < count; column++) {
      const opacity = isSelected(selection, row, column) && computeOpacity(value(row, column));
      if (!opacity) continue;
      const path = levels[Math.min(NUM_LEVELS - 1, Math.floor(NUM_LEVELS * opacity))];
      const [start, end] = [getRowCenter(row), getRowCenter(column)];
      path.moveTo(0, start);
      path.bezierCurveTo(middle, start, middle, end, width, end);
    }
  const colour = getRgb("first").join(" ");
  for (const [level, path] of levels.entries()) {
    context.strokeStyle = `rgb(${colour} / ${(level + 0.5) / NUM_LEVELS})`;
    context.stroke(path);
  }
}

// The context of a canvas of a size in CSS pixels, empty.
function resizeCanvas(canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  return context;
}

// `getWeight(index)` is the weight of each word; without it no word has a tint.
function tintButtons(group, getWeight) {
  for (const [index, element] of [...group.children].entries()) {
    const share = getWeight ? `${Math.round(70 * getWeight(index))}%` : "0%";
    if (element.style.getPropertyValue("--share") !== share)
      element.style.setProperty("--share", share);
  }
}

function describeSelection({ names, value }, { from, to }) {
  if (from < 0 && to < 0)
    return (
      "Point at a word, or move to it with the keyboard, to see only its lines. " +
      "Press it to keep them."
    );
  if (from >= 0 && to >= 0)
    return `From “${names[from]}” to “${names[to]}”: ${formatPercent(value(from, to))}.`;
  const isFrom = from >= 0;
  const largest = names
    .map((name, index) => ({ name, weight: isFrom ? value(from, index) : value(index, to) }))
    .sort((first, second) => second.weight - first.weight)
    .slice(0, 4)
    .map(({ name, weight }) => `${name} ${formatPercent(weight)}`);
  const verb = isFrom ? "attends to" : "receives attention from";
  return `“${names[isFrom ? from : to]}” ${verb} ${largest.join(", ")}.`;
}

function drawSavedLines({ count, names, value }, selection) {
  const [left, right, middle] = [
    SAVED_PICTURE.left,
    SAVED_PICTURE.width - SAVED_PICTURE.left,
    SAVED_PICTURE.width / 2,
  ];
  const label = (name, index, x, anchor) =>
    s(
      "text",
      {
        x,
        y: getRowCenter(index) + 4,
        "font-size": 12,
        fill: "var(--ink)",
        "text-anchor": anchor,
      },
      name,
    );
  const line = (row, column) => {
    const opacity = isSelected(selection, row, column) && computeOpacity(value(row, column));
    const [start, end] = [getRowCenter(row), getRowCenter(column)];
    return (
      opacity > 0 &&
      s("path", {
        d: `M${left} ${start}C${middle} ${start} ${middle} ${end} ${right} ${end}`,
        fill: "none",
        stroke: "var(--first)",
        "stroke-width": 2,
        "stroke-opacity": opacity.toFixed(3),
      })
    );
  };
  return s(
    "svg",
    { viewBox: `0 0 ${SAVED_PICTURE.width} ${count * ROW_HEIGHT}` },
    names.map((name, index) => [
      label(name, index, left - 8, "end"),
      label(name, index, right + 8, "start"),
    ]),
    names.map((_, row) => names.map((__, column) => line(row, column))),
  );
}

const formatMatrix = ({ names, value }) => [
  ["", ...names],
  ...names.map((name, row) => [name, ...names.map((_, column) => value(row, column).toFixed(4))]),
];
