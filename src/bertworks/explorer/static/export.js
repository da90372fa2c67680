// What can be saved: pictures as SVG or PNG, numbers as CSV.
import { resolveColour } from "./charts/colours.js";
import { button } from "./ui/controls.js";
import { h, s } from "./ui/dom.js";

// Buttons under a picture or table; `svg` and `csv` are functions that return what is saved.
export function saveButtons(name, { svg, csv } = {}) {
  const saveSvg = () => save(`${name}.svg`, "image/svg+xml", serializeSvg(svg()));
  const savePng = async () => save(`${name}.png`, "image/png", await renderPng(svg()));
  const saveCsv = () => save(`${name}.csv`, "text/csv", formatCsv(csv()));
  return h(
    "div",
    { class: "tools", role: "group", "aria-label": `Save ${name}` },
    svg && button("SVG", saveSvg),
    svg && button("PNG", savePng),
    csv && button("CSV", saveCsv),
  );
}

function save(name, type, content) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

// A picture as a separate file: variables become colours, the background is painted.
function serializeSvg(svg) {
  const copy = svg.cloneNode(true);
  resolveVariables(copy);
  const { width, height } = svg.viewBox.baseVal;
  const attributes = {
    xmlns: "http://www.w3.org/2000/svg",
    width,
    height,
    "font-family": "system-ui, sans-serif",
  };
  for (const [name, value] of Object.entries(attributes)) copy.setAttribute(name, value);
  copy.prepend(s("rect", { width: "100%", height: "100%", fill: resolveColour("card") }));
  return new XMLSerializer().serializeToString(copy);
}

function resolveVariables(svg) {
  const colours = new Map();
  const resolve = (_, name) => {
    if (!colours.has(name)) colours.set(name, resolveColour(name));
    return colours.get(name);
  };
  for (const element of [svg, ...svg.querySelectorAll("*")])
    for (const { name, value } of [...element.attributes])
      if (value.includes("var(--"))
        element.setAttribute(name, value.replace(/var\(--([\w-]+)\)/g, resolve));
}

async function renderPng(svg, scale = 2) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(serializeSvg(svg))}`;
  await image.decode();
  const canvas = h("canvas", { width: image.width * scale, height: image.height * scale });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

const formatCsv = (rows) => `${rows.map((row) => row.map(quoteCell).join(",")).join("\r\n")}\r\n`;

function quoteCell(value) {
  const text = String(value ?? "");
  return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
