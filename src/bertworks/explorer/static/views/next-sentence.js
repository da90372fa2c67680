// Whether a sentence follows another.
import { callExamples, formatLoading, formatPython, getModelSource } from "../calls.js";
import { bars } from "../charts/bars.js";
import { SENTENCE_PAIR } from "../examples.js";
import { saveButtons } from "../export.js";
import { inputField, textField } from "../fields.js";
import { button, table } from "../ui/controls.js";
import { h, replaceContent } from "../ui/dom.js";
import { formatPercent, formatPoints } from "../ui/format.js";

const [FIRST, SECOND] = SENTENCE_PAIR;
const MAX_ROWS = 12;

export function show(root, ctx) {
  const results = h("div", {});
  const edits = []; // latest first
  const update = ctx.createUpdate(async (signal) => {
    const inputs = [ctx.get("text", FIRST), ctx.get("pair", SECOND)];
    const [prediction] = await ctx.post("/next-sentence", { inputs }, signal);
    const probability = prediction.next_sentence_probability;
    if (edits[0]?.inputs.join("\n") !== inputs.join("\n")) edits.unshift({ inputs, probability });
    replaceContent(
      results,
      h(
        "div",
        { class: "card" },
        h("h2", { class: "h3" }, "Does it follow?"),
        probabilityBars(probability),
        h(
          "div",
          { class: "tools" },
          button("Swap", () => swap(inputs)),
        ),
      ),
      edits.length > 1 && [h("h2", {}, "As you edit"), editTable(edits)],
      callExamples(ctx, {
        path: "/next-sentence",
        body: { inputs },
        python: `${formatLoading(ctx)}model.next_sentence(${inputs.map(formatPython).join(", ")})`,
        verb: "next-sentence",
        args: [getModelSource(ctx), ...inputs],
      }),
    );
    const difference = edits[1]
      ? `, ${formatPoints(probability - edits[1].probability)} compared with the previous edit`
      : "";
    return `It follows with probability ${formatPercent(probability)}${difference}.`;
  });

  function swap([first, second]) {
    ctx.set({ text: second, pair: first });
    const [firstControl, secondControl] = form.querySelectorAll("textarea, input");
    firstControl.value = second;
    secondControl.value = first;
    update();
  }

  const form = h(
    "div",
    { class: "form" },
    textField(ctx, update, { label: "First sentence", fallback: FIRST }),
    inputField(ctx, update, { key: "pair", label: "Second sentence", fallback: SECOND }),
  );
  root.append(form, ctx.status, results);
  update();
}

const probabilityBars = (probability) =>
  bars(
    [
      { text: "next sentence", value: probability },
      { text: "random sentence", value: 1 - probability },
    ],
    { max: 1, caption: "Next sentence" },
  );

function editTable(edits) {
  const rows = edits.slice(0, MAX_ROWS).map(({ inputs, probability }, index) => {
    const previous = edits[index + 1];
    const change = previous ? formatPoints(probability - previous.probability) : "";
    return [...inputs, formatPercent(probability), change];
  });
  const columns = [
    "First",
    "Second",
    { text: "Probability", number: true },
    { text: "Change", number: true },
  ];
  const csv = () => [
    ["first", "second", "probability"],
    ...edits.map(({ inputs, probability }) => [...inputs, probability]),
  ];
  return [
    table(columns, rows, { caption: "Edits, latest first" }),
    saveButtons("next-sentence", { csv }),
  ];
}
