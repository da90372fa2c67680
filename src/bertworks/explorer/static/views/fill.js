// The most probable pieces for masked words.
import { callExamples, formatLoading, formatPython, getModelSource } from "../calls.js";
import { bars } from "../charts/bars.js";
import { saveButtons } from "../export.js";
import { inputField } from "../fields.js";
import { requestOtherModel } from "../other-model.js";
import {
  blankBars,
  describeEntropy,
  describeOriginal,
  getBlankAnswer,
  nameBlank,
} from "../predictions.js";
import { NO_BLANK, textForm } from "../text-form.js";
import { field, select } from "../ui/controls.js";
import { h, replaceContent } from "../ui/dom.js";
import { sliceText, splitTrimmed } from "../ui/strings.js";

export function show(root, ctx) {
  const results = h("div", {});
  const isFile = Boolean(ctx.source.data);
  const update = ctx.createUpdate(async (signal) => {
    const { text, pieces, maskedWords, hasBlank } = await form.read(signal);
    if (!hasBlank && !ctx.model.causal) {
      replaceContent(results);
      return NO_BLANK;
    }
    const body = {
      text,
      words: maskedWords,
      top_k: 10,
      candidates: splitTrimmed(ctx.get("candidates"), ","),
      layers: false,
      left: ctx.model.causal,
    };
    const otherModel = ctx.models.find(({ name }) => name === ctx.get("compare"));
    const [answer, otherAnswer] = await Promise.all([
      ctx.request("fill", body, signal),
      otherModel && requestOtherModel(ctx, otherModel, pieces, body, signal),
    ]);
    replaceContent(
      results,
      otherModel
        ? h(
            "div",
            { class: "cards" },
            modelColumn(ctx.model.name, answer),
            modelColumn(otherModel.name, otherAnswer),
          )
        : h("div", {}, h("div", {}, blankCards(answer))),
      isFile ? null : fillExamples(ctx, text, pieces, body),
    );
    return describeAnswer(answer);
  });
  const form = textForm(ctx, update, { readsMasks: true, isSingle: isFile });
  if (!isFile) form.element.append(optionFields(ctx, update));
  root.append(form.element, ctx.status, results);
  update();
}

// Candidates to score, and a model to compare with.
function optionFields(ctx, onchange) {
  const candidates = inputField(ctx, onchange, {
    key: "candidates",
    label: "Candidates to score, separated by commas (optional)",
  });
  const models = ctx.models.filter((model) => canCompare(ctx.model, model));
  const changeModel = (name) => {
    ctx.set({ compare: name || null });
    onchange();
  };
  const options = [["", "no other model"], ...models.map(({ name }) => [name, name])];
  return h(
    "div",
    { class: "row end" },
    h("div", { class: "grow" }, candidates),
    models.length > 0 && field("Compare with", select(options, ctx.get("compare"), changeModel)),
  );
}

// Models that predict masked words, or both none; a model that is not loaded may be such a one.
function canCompare(model, other) {
  if (other === model) return false;
  if (!other.views) return true;
  return other.views.fill === null && Boolean(other.mask) === Boolean(model.mask);
}

const modelColumn = (name, answer) =>
  h(
    "div",
    {},
    h("h2", {}, name),
    answer.note && h("p", { class: "soft small" }, answer.note),
    blankCards(answer),
  );

function blankCards({ blanks }) {
  const hasMany = blanks.length > 1;
  return h(
    "div",
    { class: "cards" },
    blanks.map((blank, index) => blankCard(blank, nameBlank(index, hasMany))),
  );
}

function blankCard(blank, name) {
  const answer = getBlankAnswer(blank);
  const { top, candidates, entropy } = answer;
  const csv = () => [
    ["piece", "probability"],
    ...top.map(({ token, probability }) => [token, probability]),
    ...candidates.map(({ candidate, probability }) => [candidate, probability]),
  ];
  return h(
    "section",
    { class: "card" },
    h("h2", { class: "h3" }, name, describeOriginal(blank)),
    blankBars(answer, { caption: name }),
    candidates?.length > 0 && [h("h3", {}, "Candidates"), candidateBars(candidates, name)],
    h("p", { class: "soft small" }, describeEntropy(entropy)),
    saveButtons(name.toLowerCase().replaceAll(" ", "-"), { csv }),
  );
}

const candidateBars = (candidates, name) =>
  bars(
    candidates.map(({ candidate, probability, pieces }) => ({
      text: candidate,
      value: probability,
      note: pieces.length > 1 ? `(${pieces.join(" ")})` : null,
    })),
    { caption: `Candidates for ${name}` },
  );

function describeAnswer({ blanks }) {
  const best = blanks.map((blank) => getBlankAnswer(blank).top[0]);
  const texts = best.map(
    ({ token, probability }) => `${token} (${(100 * probability).toFixed(0)} %)`,
  );
  return `Most probable: ${texts.join(", ")}.`;
}

function fillExamples(ctx, text, pieces, { words, candidates }) {
  if (ctx.model.causal) return generateExamples(ctx, text);
  const inputs = maskWords(text, pieces, words, ctx.model.mask);
  const pythonText = formatPython(inputs);
  return callExamples(ctx, {
    path: "/fill-mask",
    body: { inputs, top_k: 10, candidates },
    python: candidates.length
      ? `import bertworks as bw\n\nclient = bw.Client(${formatPython(ctx.source.origin)})\n` +
        `client.fill_mask(${pythonText}, candidates=${formatPython(candidates)})`
      : `${formatLoading(ctx)}model.fill_mask(${pythonText}, top_k=10)`,
    verb: "fill-mask",
    args: [getModelSource(ctx), inputs],
    options: ["--top-k", "10"],
  });
}

const generateExamples = (ctx, text) =>
  callExamples(ctx, {
    path: "/generate",
    body: { inputs: text, max_new_tokens: 1 },
    python: `${formatLoading(ctx)}model.generate([${formatPython(text)}], max_new_tokens=1)`,
    verb: "generate",
    args: [getModelSource(ctx), text],
    options: ["--max-new-tokens", "1"],
  });

// The text as other callers write it: a mask for each piece. Later words first, so that offsets
// stay valid.
function maskWords(text, pieces, numbers, mask) {
  let result = text;
  for (const word of [...pieces.words].reverse()) {
    if (!numbers.includes(word.number)) continue;
    const masks = word.tokens.map(() => mask).join(" ");
    result = sliceText(result, 0, word.start) + masks + sliceText(result, word.end);
  }
  return result;
}
