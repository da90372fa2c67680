// The label of a text.
import { callExamples, formatLoading, formatPython, getModelSource } from "../calls.js";
import { bars } from "../charts/bars.js";
import { selectExample } from "../examples.js";
import { saveButtons } from "../export.js";
import { inputField, textField } from "../fields.js";
import { facts } from "../predictions.js";
import { h, replaceContent } from "../ui/dom.js";
import { formatFixed, formatPercent } from "../ui/format.js";

export function show(root, ctx) {
  const results = h("div", {});
  const example = selectExample(ctx.model);
  const hasPair = ctx.model.second_text;
  const update = ctx.createUpdate(async (signal) => {
    const text = ctx.get("text", example.text);
    const pair = hasPair ? ctx.get("pair", example.pair ?? "").trim() : "";
    const inputs = pair ? [[text, pair]] : [text];
    const [prediction] = await ctx.post("/classify", { inputs }, signal);
    const probabilities = Object.entries(prediction.probabilities ?? {}).sort(
      ([, first], [, second]) => second - first,
    );
    replaceContent(
      results,
      probabilities.length ? labelBars(prediction, probabilities) : valueFacts(prediction),
      classifyExamples(ctx, inputs, text, pair),
    );
    if (!probabilities.length) return "";
    const [[label, probability]] = probabilities;
    return `${label}: ${formatPercent(probability)}.`;
  });
  const pairField = inputField(ctx, update, {
    key: "pair",
    label: ctx.model.pairs ? "Second text" : "Second text (if the model takes pairs)",
    fallback: example.pair ?? "",
  });
  root.append(
    h("div", { class: "form" }, textField(ctx, update), hasPair && pairField),
    ctx.status,
    results,
  );
  update();
}

function labelBars({ label, labels }, probabilities) {
  const items = probabilities.map(([name, value]) => ({
    text: name,
    value,
    isMarked: name === label || labels?.includes(name),
  }));
  return h(
    "div",
    { class: "card" },
    bars(items, { caption: "Labels", header: "Label", max: 1 }),
    saveButtons("labels", { csv: () => [["label", "probability"], ...probabilities] }),
  );
}

// What a regression predicts.
const valueFacts = (prediction) =>
  facts(
    Object.entries(prediction).map(([name, value]) => [
      name,
      typeof value === "number" ? formatFixed(value, 3) : String(value),
    ]),
  );

function classifyExamples(ctx, inputs, text, pair) {
  const row = pair ? `(${formatPython(text)}, ${formatPython(pair)})` : formatPython(text);
  return callExamples(ctx, {
    path: "/classify",
    body: { inputs },
    python: `${formatLoading(ctx)}model.predict([${row}])`,
    verb: "predict",
    args: [getModelSource(ctx), text],
    options: pair ? ["--pair", pair] : [],
  });
}
