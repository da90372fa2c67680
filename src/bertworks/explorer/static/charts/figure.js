// What all charts have: a title, a caption, a table of their numbers, buttons that save them.
import { saveButtons } from "../export.js";
import { table } from "../ui/controls.js";
import { createId, h, s } from "../ui/dom.js";

const FONT_SIZE = 11;
const LETTER_WIDTH = 0.56; // in ems

// `body` contains the chart; `rows()` are its numbers; `svg()` is what is saved, if it is not the
// SVG in the body.
export function figure({ title, caption, name, body, columns, rows, svg }) {
  const id = createId("figure");
  return h(
    "figure",
    { "aria-labelledby": id },
    h("h3", { id }, title),
    body,
    caption && h("figcaption", {}, caption),
    rows && foldedTable(title, columns, rows),
    saveButtons(name, {
      svg: svg ?? (() => body.querySelector("svg")),
      csv: rows && (() => [columns.map((column) => column.text ?? column), ...rows()]),
    }),
  );
}

// The table is made when it is unfolded.
function foldedTable(title, columns, rows) {
  const fill = (event) => {
    if (event.target.open && !details.querySelector("table"))
      details.append(table(columns, rows(), { caption: title, className: "fit" }));
  };
  const details = h("details", { ontoggle: fill }, h("summary", {}, "As a table"));
  return details;
}

// An element with what `draw(width)` returns, drawn again when its width changes.
export function responsive(draw) {
  const holder = h("div", { class: "scroll" });
  let drawnWidth = 0;
  new ResizeObserver(([entry]) => {
    const width = Math.floor(entry.contentRect.width);
    if (!width || width === drawnWidth) return;
    drawnWidth = width;
    holder.replaceChildren(draw(width));
  }).observe(holder);
  return holder;
}

export const svgText = (x, y, content, attributes = {}) =>
  s("text", { x, y, "font-size": FONT_SIZE, fill: "var(--soft)", ...attributes }, content);

// The width of some letters, roughly.
export const measureText = (letters, fontSize = FONT_SIZE) => letters * fontSize * LETTER_WIDTH;

export const shorten = (text, maxLetters) =>
  text.length > maxLetters ? `${text.slice(0, maxLetters - 1)}…` : text;
