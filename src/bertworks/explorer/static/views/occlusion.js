// How a prediction changes without each word.
import { explorerCallExamples } from "../calls.js";
import { saveButtons } from "../export.js";
import { predictionBars } from "../predictions.js";
import {
  describeTarget,
  formatTargetChange,
  formatTargetValue,
  isNumber,
  listOutcomes,
  selectOutcome,
} from "../targets.js";
import { explainNoPrediction, textForm } from "../text-form.js";
import { field, select, table } from "../ui/controls.js";
import { h, replaceContent } from "../ui/dom.js";
import { capitalize } from "../ui/format.js";

export function show(root, ctx) {
  const results = h("div", {});
  const isFile = Boolean(ctx.source.data);
  const update = ctx.createUpdate(async (signal) => {
    const input = await form.read(signal);
    const reason = explainNoPrediction(ctx, input);
    if (reason) {
      replaceContent(results);
      return reason;
    }
    const { prediction } = await ctx.request("predict", input.body, signal);
    const names = isFile ? [] : listOutcomes(prediction);
    const target = selectOutcome(prediction.target, names, ctx.get("target"));
    const body = { ...input.body, target };
    const answer = await ctx.request("occlusion", body, signal);
    replaceContent(
      results,
      names.length > 1 && targetField(names, answer.prediction.target.name),
      markedText(answer),
      h("div", { class: "cards spaced" }, effectCard(answer), predictionCard(answer.prediction)),
      isFile ? null : explorerCallExamples(ctx, "occlusion", body),
    );
    return describeAnswer(answer);
  });

  function targetField(names, name) {
    const change = (target) => {
      ctx.set({ target });
      update();
    };
    return field("Prediction to explain", select(names, name, change));
  }

  const changeText = () => {
    ctx.set({ target: null });
    update();
  };
  const form = textForm(ctx, changeText, { hasPair: true, isSingle: true, startsMasked: true });
  root.append(form.element, ctx.status, results);
  update();
}

function describeAnswer(answer) {
  const { target, probability } = answer.prediction;
  const value = formatTargetValue(target, probability);
  return `${capitalize(describeTarget(target))}: ${value}. ${describeEffects(answer)}`;
}

// The word that the prediction depends on most, and the one that counts against it, if that is
// more.
function describeEffects({ pieces, prediction, words }) {
  if (!words.length) return "";
  const sorted = [...words].sort((a, b) => a.change - b.change);
  const [lowest, highest] = [sorted[0], sorted.at(-1)];
  const quote = ({ word }) => `“${pieces.words[word].text}”`;
  const support =
    lowest.change < 0 ? `It depends most on ${quote(lowest)}.` : "Hiding a word never lowers it.";
  if (highest.change <= Math.max(0, -lowest.change)) return support;
  const change = formatTargetChange(prediction.target, highest.change);
  return `${support} Hiding ${quote(highest)} raises it: ${change}.`;
}

// The text; the colour of a word is the effect of hiding it.
function markedText({ pieces, prediction, words }) {
  const maxChange = Math.max(1e-9, ...words.map(({ change }) => Math.abs(change)));
  const changes = new Map(words.map(({ word, change }) => [word, change]));
  const mark = ({ number, text }) => {
    if (!changes.has(number)) return h("span", { class: "soft" }, text);
    const change = changes.get(number);
    const style = {
      "--mark": change < 0 ? "var(--first)" : "var(--second)",
      "--strength": `${Math.round((40 * Math.abs(change)) / maxChange)}%`,
    };
    const title = formatTargetChange(prediction.target, change);
    return h("mark", { title, style, class: "influence" }, text);
  };
  return h(
    "div",
    { class: "card" },
    h(
      "p",
      { class: "passage" },
      pieces.words.map((word) => [mark(word), " "]),
    ),
    h(
      "p",
      { class: "soft small" },
      "Blue words support the prediction: without them its probability falls. " +
        "Orange words lower it.",
    ),
  );
}

function effectCard({ pieces, prediction: { target }, words }) {
  const rows = [...words].sort((a, b) => Math.abs(b.change) - Math.abs(a.change));
  const valueName = isNumber(target) ? "Value" : "Probability";
  const csv = () => [
    ["word", "text", "probability", "change"],
    ...words.map(({ word, probability, change }) => [
      word,
      pieces.words[word].text,
      probability,
      change,
    ]),
  ];
  return h(
    "section",
    { class: "card" },
    h("h2", { class: "h3" }, "Effect of each word"),
    table(
      ["Hidden word", { text: valueName, number: true }, { text: "Change", number: true }],
      rows.map(({ word, probability, change }) => [
        pieces.words[word].text,
        formatTargetValue(target, probability),
        h("span", { class: change < 0 ? "down" : "up" }, formatTargetChange(target, change)),
      ]),
      { caption: "Effect of each word" },
    ),
    saveButtons("occlusion", { csv }),
  );
}

const predictionCard = (prediction) =>
  h(
    "section",
    { class: "card" },
    h("h2", { class: "h3" }, "With all words"),
    predictionBars(prediction),
  );
