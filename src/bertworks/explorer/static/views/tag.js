// The tags of words, and the entities that they mark.
import { callExamples, formatLoading, formatPython, getModelSource } from "../calls.js";
import { SERIES } from "../charts/colours.js";
import { selectExample } from "../examples.js";
import { saveButtons } from "../export.js";
import { textField } from "../fields.js";
import { table } from "../ui/controls.js";
import { h, replaceContent } from "../ui/dom.js";
import { formatPercent } from "../ui/format.js";
import { sliceText } from "../ui/strings.js";

const PROBABILITY = { text: "Probability", number: true };

export function show(root, ctx) {
  const results = h("div", {});
  const update = ctx.createUpdate(async (signal) => {
    const text = ctx.get("text", selectExample(ctx.model).text);
    const [prediction] = await ctx.post("/tag", { inputs: text }, signal);
    const entities = prediction.entities ?? [];
    replaceContent(
      results,
      prediction.entities &&
        h("div", { class: "card" }, h("p", { class: "passage" }, markEntities(text, entities))),
      entities.length > 0 && [h("h2", {}, "Entities"), entityTable(entities)],
      h("h2", {}, "Word by word"),
      tagTable(prediction),
      callExamples(ctx, {
        path: "/tag",
        body: { inputs: text },
        python: `${formatLoading(ctx)}model.predict(${formatPython(text)})`,
        verb: "predict",
        args: [getModelSource(ctx), text],
      }),
    );
    return `${entities.length} ${entities.length === 1 ? "entity" : "entities"}.`;
  });
  root.append(h("div", { class: "form" }, textField(ctx, update)), ctx.status, results);
  update();
}

// The text with its entities marked, each type in a colour.
function markEntities(text, entities) {
  const types = [...new Set(entities.map((entity) => entity.type))].sort();
  const ends = [0, ...entities.map((entity) => entity.end)];
  const parts = entities.map(({ start, end, type }, index) => [
    sliceText(text, ends[index], start),
    h(
      "mark",
      { style: { "--mark": `var(--${SERIES[types.indexOf(type) % 4]})` } },
      sliceText(text, start, end),
      h("sub", {}, type),
    ),
  ]);
  return [parts, sliceText(text, ends.at(-1))];
}

const entityTable = (entities) =>
  table(
    ["Entity", "Type", "Characters", PROBABILITY],
    entities.map(({ text, type, start, end, probability }) => [
      text,
      type,
      `${start}–${end}`,
      formatPercent(probability),
    ]),
    { caption: "Entities" },
  );

function tagTable({ words, tags, probabilities }) {
  const rows = words.map((word, index) => [
    word,
    tags[index],
    Number(probabilities[index].toFixed(4)),
  ]);
  return [
    table(
      ["Word", "Tag", PROBABILITY],
      rows.map(([word, tag, probability]) => [word, tag, formatPercent(probability)]),
      { caption: "Tags", className: "fit" },
    ),
    saveButtons("tags", { csv: () => [["word", "tag", "probability"], ...rows] }),
  ];
}
