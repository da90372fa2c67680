// Names of heads, and a number for each of them.
import { heatmap } from "../charts/heatmap.js";
import { formatFixed } from "../ui/format.js";

export const nameHead = (layer, head) => `Layer ${layer + 1}, head ${head + 1}`;

// Within a sentence.
export const nameHeadInText = (layer, head) => nameHead(layer, head).toLowerCase();

export const nameHeadOrMean = (layer, head, isMean) =>
  isMean ? `Layer ${layer + 1}, mean over its heads` : nameHead(layer, head);

// `values[layer][head]`: layers are rows, heads are columns.
export const headHeatmap = (
  values,
  { title, name, format = formatFixed, low = 0, max, caption, onpick },
) =>
  heatmap({
    title,
    name,
    caption,
    format,
    onpick,
    maxCellSize: 44,
    showsNumbers: true,
    low,
    rows: values.map((_, layer) => `Layer ${layer + 1}`),
    columns: values[0].map((_, head) => String(head + 1)),
    columnName: "head",
    rowName: "",
    value: (row, column) => values[row][column],
    max: max ?? Math.max(1e-9, ...values.flat().map(Math.abs)),
  });
