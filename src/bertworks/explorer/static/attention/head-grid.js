// The matrices of all heads, small.
import { createImage } from "../charts/pixels.js";
import { saveButtons } from "../export.js";
import { addArrowKeys, button } from "../ui/controls.js";
import { h, s } from "../ui/dom.js";
import { nameHeadOrMean } from "./heads.js";

const SAVED_SIZE = 64; // of a head in the saved picture, in pixels
const SAVED_LEFT = 20;

// One canvas with a button over each head, which calls `onpick(layer, head)`.
export function headGrid(weights, options, [pressedLayer, pressedHead], onpick) {
  const numColumns = options.mean ? 1 : weights.numHeads;
  const canvas = drawHeads(weights, options, numColumns);
  const headButton = (layer, head) => {
    const label = nameHeadOrMean(layer, head, options.mean);
    return button("", () => onpick(layer, head), {
      "aria-label": label,
      title: label,
      style: { "grid-area": `${layer + 1} / ${head + 2}` },
      "aria-pressed": layer === pressedLayer && (head === pressedHead || options.mean),
    });
  };
  const layerLabel = (layer) =>
    h(
      "span",
      { class: "soft small", "aria-hidden": "true", style: { "grid-area": `${layer + 1} / 1` } },
      layer + 1,
    );
  const grid = h(
    "div",
    {
      class: "heads",
      role: "group",
      "aria-label": "Heads; press one to enlarge it",
      style: { "--heads": numColumns },
    },
    canvas,
    Array.from({ length: weights.numLayers }, (_, layer) => [
      layerLabel(layer),
      Array.from({ length: numColumns }, (__, head) => headButton(layer, head)),
    ]),
  );
  const svg = () => drawSavedGrid(canvas, weights.numLayers, numColumns);
  return [
    h(
      "div",
      { class: "scroll" },
      addArrowKeys(grid, () => numColumns),
    ),
    h(
      "p",
      { class: "soft small" },
      "One row of heads per layer; in each head, one row per attending piece. Stronger colour " +
        "means more attention (square-root scale, so that small weights are visible).",
    ),
    saveButtons("attention-heads", { svg }),
  ];
}

export function pressHead(grid, layer, head, numColumns) {
  for (const [index, element] of [...grid.querySelectorAll("button")].entries())
    element.setAttribute("aria-pressed", index === layer * numColumns + head);
}

function drawHeads(weights, options, numColumns) {
  const { count } = weights.getMatrix(0, 0, options);
  const canvas = h("canvas", {
    "aria-hidden": "true",
    style: { "grid-area": `1 / 2 / ${weights.numLayers + 1} / ${numColumns + 2}` },
  });
  canvas.width = numColumns * count;
  canvas.height = weights.numLayers * count;
  canvas.style.setProperty("image-rendering", count > 48 ? "auto" : "pixelated");
  const context = canvas.getContext("2d");
  for (let layer = 0; layer < weights.numLayers; layer++)
    for (let head = 0; head < numColumns; head++) {
      const strengths = weights.getMatrix(layer, head, options).values.map(Math.sqrt);
      context.putImageData(createImage(count, count, strengths), head * count, layer * count);
    }
  return canvas;
}

function drawSavedGrid(canvas, numLayers, numColumns) {
  const [width, height] = [numColumns * SAVED_SIZE, numLayers * SAVED_SIZE];
  const layerLabel = (layer) =>
    s(
      "text",
      {
        x: 14,
        y: layer * SAVED_SIZE + 36,
        "font-size": 11,
        "text-anchor": "end",
        fill: "var(--soft)",
      },
      layer + 1,
    );
  const frame = (layer, head) =>
    s("rect", {
      x: SAVED_LEFT + head * SAVED_SIZE,
      y: layer * SAVED_SIZE,
      width: SAVED_SIZE,
      height: SAVED_SIZE,
      fill: "none",
      stroke: "var(--card)",
      "stroke-width": 4,
    });
  return s(
    "svg",
    { viewBox: `0 0 ${width + SAVED_LEFT} ${height}` },
    s("image", {
      href: canvas.toDataURL(),
      x: SAVED_LEFT,
      y: 0,
      width,
      height,
      preserveAspectRatio: "none",
      style: { "image-rendering": "pixelated" },
    }),
    Array.from({ length: numLayers }, (_, layer) => [
      layerLabel(layer),
      Array.from({ length: numColumns }, (__, head) => frame(layer, head)),
    ]),
  );
}
