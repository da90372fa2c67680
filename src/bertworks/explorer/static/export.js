// What leaves the page: pictures as SVG or PNG, numbers as CSV, calls to the clipboard.
import { button, h } from "./dom.js";

// The colour of a CSS variable now, light or dark.
export function colour(name) {
  const probe = h("span", { style: { color: `var(--${name})` } });
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

// A picture as a separate file: variables become colours, the paper is painted.
export function svgText(svg) {
  const copy = svg.cloneNode(true);
  const known = new Map();
  const resolve = (text) =>
    text.replace(/var\(--([\w-]+)\)/g, (_, name) => {
      if (!known.has(name)) known.set(name, colour(name));
      return known.get(name);
    });
  for (const element of [copy, ...copy.querySelectorAll("*")])
    for (const { name, value } of [...element.attributes])
      if (value.includes("var(--")) element.setAttribute(name, resolve(value));
  const box = svg.viewBox.baseVal;
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", box.width);
  copy.setAttribute("height", box.height);
  copy.setAttribute("font-family", "system-ui, sans-serif");
  const paper = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  for (const [key, value] of Object.entries({
    width: "100%",
    height: "100%",
    fill: colour("card"),
  }))
    paper.setAttribute(key, value);
  copy.prepend(paper);
  return new XMLSerializer().serializeToString(copy);
}

export async function pngBlob(svg, scale = 2) {
  const picture = new Image();
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svgText(svg))}`;
  await picture.decode();
  const canvas = h("canvas", { width: picture.width * scale, height: picture.height * scale });
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

const cell = (value) => {
  const text = String(value ?? "");
  return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};
export const csvText = (rows) => `${rows.map((row) => row.map(cell).join(",")).join("\r\n")}\r\n`;

function save(name, blob) {
  const url = URL.createObjectURL(blob);
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

// Buttons under a picture or table; `svg` and `csv` are functions, called when they are wanted.
export function tools(name, { svg, csv } = {}) {
  return h(
    "div",
    { class: "tools", role: "group", "aria-label": `Save ${name}` },
    svg &&
      button("SVG", () =>
        save(`${name}.svg`, new Blob([svgText(svg())], { type: "image/svg+xml" })),
      ),
    svg && button("PNG", async () => save(`${name}.png`, await pngBlob(svg()))),
    csv &&
      button("CSV", () => save(`${name}.csv`, new Blob([csvText(csv())], { type: "text/csv" }))),
  );
}

export function copyButton(label, text, name = "Copy") {
  const made = button(
    name,
    async () => {
      const copied = await write(text());
      made.textContent = copied ? "Copied" : "Select and copy";
      setTimeout(() => (made.textContent = name), 1500);
    },
    { class: "small", "aria-label": label, "aria-live": "polite" },
  );
  return made;
}

// The clipboard is for secure pages alone: elsewhere, what is selected is copied.
async function write(text) {
  if (navigator.clipboard)
    return navigator.clipboard.writeText(text).then(
      () => true,
      () => false,
    );
  const field = h("textarea", { class: "hidden", value: text });
  document.body.append(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  return copied;
}
