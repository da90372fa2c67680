// The colours of the style sheet, as pictures need them: light or dark.
import { h } from "../ui/dom.js";

// The colours of series, as names of CSS variables.
export const SERIES = ["first", "second", "third", "fourth", "faint"];

// The value of a CSS variable now.
export function resolveColour(name) {
  const probe = h("span", { style: { color: `var(--${name})` } });
  document.body.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

const rgbByName = new Map();

// Red, green and blue of a colour, from 0 to 255.
export function getRgb(name) {
  if (!rgbByName.has(name)) rgbByName.set(name, computeRgb(name));
  return rgbByName.get(name);
}

function computeRgb(name) {
  const context = h("canvas", { width: 1, height: 1 }).getContext("2d");
  context.fillStyle = resolveColour(name);
  context.fillRect(0, 0, 1, 1);
  return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
}

// Light and dark have other colours.
export const forgetColours = () => rgbByName.clear();
