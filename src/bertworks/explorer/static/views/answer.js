// The answer to a question, in a passage.
import { callExamples, formatLoading, formatPython, getModelSource } from "../calls.js";
import { bars } from "../charts/bars.js";
import { QUESTION } from "../examples.js";
import { saveButtons } from "../export.js";
import { inputField, textField } from "../fields.js";
import { slider } from "../ui/controls.js";
import { h, replaceContent } from "../ui/dom.js";
import { formatPercent } from "../ui/format.js";
import { sliceText } from "../ui/strings.js";

export function show(root, ctx) {
  const results = h("div", {});
  let alternatives = [];
  const readInputs = () => ({
    question: ctx.get("question", QUESTION.text),
    context: ctx.get("text", QUESTION.pair),
  });

  const update = ctx.createUpdate(async (signal) => {
    const inputs = readInputs();
    [{ alternatives }] = await ctx.post("/answer", { inputs, n_best: 100 }, signal);
    return draw();
  });

  function draw() {
    const { question, context } = readInputs();
    const threshold = ctx.getNumber("limit", 50) / 100;
    const decision = decideAnswer(alternatives, threshold);
    const { best, isAnswered, hasNoAnswer } = decision;
    replaceContent(
      results,
      passageCard(context, isAnswered ? best : null),
      noAnswerNote(decision),
      hasNoAnswer && thresholdSlider(threshold),
      h("h2", {}, "The best spans"),
      spanBars(alternatives, isAnswered ? best : null),
      answerExamples(ctx, question, context),
    );
    return isAnswered ? `“${best.answer}”, ${formatPercent(best.probability)}.` : "No answer.";
  }

  function thresholdSlider(threshold) {
    const change = (percentage) => {
      ctx.set({ limit: percentage });
      ctx.showStatus(draw());
    };
    const options = { min: 0, max: 100, value: threshold * 100, format: (value) => `${value} %` };
    return h(
      "div",
      { class: "spaced" },
      slider("“No answer” is predicted above this share", options, change),
    );
  }

  root.append(
    h(
      "div",
      { class: "form" },
      inputField(ctx, update, { key: "question", label: "Question", fallback: QUESTION.text }),
      textField(ctx, update, { label: "Passage", fallback: QUESTION.pair }),
    ),
    ctx.status,
    results,
  );
  update();
  results.addEventListener("input", (event) => {
    if (event.target.type === "range") results.querySelector("input")?.focus();
  });
}

// The best span, unless “no answer”, compared with it, is above the threshold.
function decideAnswer(alternatives, threshold) {
  const noAnswer = alternatives.find(({ answer }) => answer === "");
  const best = alternatives.find(({ answer }) => answer !== "");
  const share =
    noAnswer && best ? noAnswer.probability / (noAnswer.probability + best.probability) : 0;
  return {
    best,
    share,
    hasNoAnswer: Boolean(noAnswer),
    isAnswered: Boolean(best) && (!noAnswer || share <= threshold),
  };
}

function passageCard(passage, span) {
  const parts = span && [
    sliceText(passage, 0, span.start),
    h("mark", {}, sliceText(passage, span.start, span.end)),
    sliceText(passage, span.end),
  ];
  return h(
    "div",
    { class: "card" },
    h("p", { class: "passage" }, parts ?? passage),
    !span && h("p", { class: "notice" }, "No answer."),
  );
}

const noAnswerNote = ({ hasNoAnswer, share }) =>
  h(
    "p",
    { class: "soft small" },
    hasNoAnswer
      ? `“No answer” compared with the best span: ${formatPercent(share)}.`
      : "“No answer” is not among the best 100.",
  );

function spanBars(alternatives, answeredSpan) {
  const items = alternatives.slice(0, 10).map((span) => ({
    text: span.answer || "(no answer)",
    value: span.probability,
    isMarked: span === answeredSpan,
  }));
  const csv = () => [
    ["answer", "start", "end", "probability"],
    ...alternatives.map(({ answer, start, end, probability }) => [answer, start, end, probability]),
  ];
  return h(
    "div",
    { class: "card" },
    bars(items, { caption: "The best spans", header: "Answer" }),
    saveButtons("answers", { csv }),
  );
}

function answerExamples(ctx, question, context) {
  const row = `(${formatPython(question)}, ${formatPython(context)})`;
  return callExamples(ctx, {
    path: "/answer",
    body: { inputs: { question, context }, n_best: 20 },
    python: `${formatLoading(ctx)}model.predict([${row}])`,
    verb: "predict",
    args: [getModelSource(ctx), question],
    options: ["--pair", context],
  });
}
