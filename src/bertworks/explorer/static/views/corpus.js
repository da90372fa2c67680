// The answers to a question, in the passages of the server's corpus.
import { callExamples, formatPython, getModelSource } from "../calls.js";
import { QUESTION } from "../examples.js";
import { saveButtons } from "../export.js";
import { inputField } from "../fields.js";
import { h, replaceContent } from "../ui/dom.js";
import { formatFixed } from "../ui/format.js";
import { sliceText } from "../ui/strings.js";

const TOP_K = 5;
const COLUMNS = ["answer", "score", "similarity", "where", "start", "end", "passage"];

export function show(root, ctx) {
  const results = h("div", {});
  const update = ctx.createUpdate(async (signal) => {
    const question = ctx.get("question", QUESTION.text).trim();
    if (!question) throw new Error("Enter a question.");
    const inputs = { question };
    const [{ alternatives }] = await ctx.post("/answer", { inputs, n_best: TOP_K }, signal);
    replaceContent(
      results,
      alternatives.map(answerCard),
      alternatives.length > 0 &&
        saveButtons("answers", {
          csv: () => [COLUMNS, ...alternatives.map((one) => COLUMNS.map((name) => one[name]))],
        }),
      answerExamples(ctx, question, alternatives),
    );
    return alternatives.length ? `“${alternatives[0].answer}”` : "No passage has an answer.";
  });
  root.append(
    h(
      "div",
      { class: "form" },
      inputField(ctx, update, { key: "question", label: "Question", fallback: QUESTION.text }),
    ),
    ctx.status,
    results,
  );
  update();
}

const answerCard = ({ answer, score, similarity, where, start, end, passage }) =>
  h(
    "div",
    { class: "card" },
    h("h2", { class: "h3" }, answer),
    h(
      "p",
      { class: "passage" },
      sliceText(passage, 0, start),
      h("mark", {}, sliceText(passage, start, end)),
      sliceText(passage, end),
    ),
    h(
      "p",
      { class: "soft small" },
      `${where} · reader ${formatFixed(score)} · passage ${formatFixed(similarity)}`,
    ),
  );

function answerExamples(ctx, question, answers) {
  const model = ctx.model.default ? "" : `, model=${formatPython(ctx.model.name)}`;
  const python = [
    "import bertworks as bw\n",
    `with bw.Client(${formatPython(ctx.source.origin)}${model}) as client:`,
    `    client.answer(${formatPython(question)}, top_k=${TOP_K})`,
  ];
  return callExamples(ctx, {
    path: "/answer",
    body: { inputs: { question }, n_best: TOP_K },
    python: python.join("\n"),
    files: { "passages.txt": [...new Set(answers.map(({ passage }) => passage))] },
    verb: "answer",
    args: [question],
    options: ["--corpus", "passages.txt", "--reader", getModelSource(ctx)],
  });
}
