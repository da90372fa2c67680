// What each head does, as one number: distance, entropy, shares of attention.
import { field, select } from "../ui/controls.js";
import { formatFixed, formatPercent } from "../ui/format.js";
import { headHeatmap } from "./heads.js";

// Title, caption and format of each measure.
const MEASURES = {
  distance: ["Distance", "Mean distance to the attended pieces, in pieces.", formatFixed],
  entropy: ["Entropy", "How widely attention is spread, in bits.", formatFixed],
  separator: [
    "Share on [SEP]",
    "Mean share of attention on separators. A head with nothing to do often attends to them " +
      "(Clark et al. 2019).",
    formatPercent,
  ],
  first: [
    "Share on the first piece",
    "Mean share of attention on [CLS], or whichever piece is first.",
    formatPercent,
  ],
  self: ["Share on itself", "Mean share of attention on the piece itself.", formatPercent],
  previous: [
    "Share on the previous piece",
    "Mean share of attention on the previous piece.",
    formatPercent,
  ],
  next: ["Share on the next piece", "Mean share of attention on the next piece.", formatPercent],
};

// `measures[key][layer][head]`; `onchange` is called when another measure is chosen.
export function headMeasures(ctx, measures, { onchange, onpick }) {
  const key = ctx.get("measure") in MEASURES ? ctx.get("measure") : "distance";
  const [title, caption, format] = MEASURES[key];
  const values = measures[key].flat();
  const options = Object.entries(MEASURES).map(([name, [text]]) => [name, text]);
  const change = (name) => {
    ctx.set({ measure: name });
    onchange();
  };
  return [
    field("Measure", select(options, key, change)),
    headHeatmap(measures[key], {
      title,
      caption,
      name: `heads-${key}`,
      format,
      low: Math.min(...values) * 0.9,
      max: Math.max(...values),
      onpick,
    }),
  ];
}
