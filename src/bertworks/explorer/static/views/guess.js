// Guess a masked word, then see how the model's prediction forms.
import { explorerCallExamples } from "../calls.js";
import { lineChart } from "../charts/line-chart.js";
import {
  blankBars,
  describeEntropy,
  describeOriginal,
  getBlankAnswer,
  nameBlank,
} from "../predictions.js";
import { textForm } from "../text-form.js";
import { button, field, slider, table, textInput } from "../ui/controls.js";
import { h, replaceContent } from "../ui/dom.js";
import { formatPercent, formatToken } from "../ui/format.js";

export function show(root, ctx) {
  const results = h("div", {});
  const isFile = Boolean(ctx.source.data);
  const steps = ctx.model.checkpoints ?? [];
  const getCheckpoint = () => steps.find((step) => String(step) === ctx.get("checkpoint")) ?? null;
  const update = ctx.createUpdate(async (signal) => {
    const { text, body, hasBlank } = await form.read(signal);
    revealButton.disabled = !hasBlank && !ctx.model.causal;
    if (revealButton.disabled || !ctx.get("shown")) {
      replaceContent(results);
      return revealButton.disabled
        ? "Press the word to guess."
        : "Type your guess, then press Reveal.";
    }
    const guess = ctx.get("guess").trim();
    const request = {
      text,
      words: body.words,
      top_k: 10,
      layers: true,
      left: ctx.model.causal,
      candidates: isFile || !guess ? [] : [guess],
      checkpoint: getCheckpoint(),
    };
    const { blanks } = await ctx.request("fill", request, signal);
    const hasMany = blanks.length > 1;
    const shownRequest = { ...request, left: undefined, top_k: undefined };
    replaceContent(
      results,
      blanks.map((blank, index) => blankSection(blank, nameBlank(index, hasMany), guess)),
      steps.length > 1 && checkpointComparison(ctx, steps, request),
      isFile ? null : explorerCallExamples(ctx, "fill", shownRequest),
    );
    return describeGuess(blanks[0], guess);
  });

  const hideAnswer = () => {
    ctx.set({ shown: null });
    update();
  };
  const form = textForm(ctx, hideAnswer, {
    readsMasks: true,
    isSingle: true,
    hint: "Words; press the one to guess",
  });
  const input = textInput(ctx.get("guess"), () => {});
  const reveal = () => {
    ctx.set({ shown: 1, guess: input.value.trim() || null });
    update();
  };
  const revealButton = button("Reveal", reveal, { class: "main", type: "submit" });
  form.element.append(
    h(
      "form",
      { class: "row end", onsubmit: (event) => event.preventDefault() },
      h("div", { class: "grow" }, field("Your guess", input)),
      revealButton,
    ),
  );
  if (steps.length) form.element.append(checkpointSlider(ctx, steps, getCheckpoint(), update));
  root.append(form.element, ctx.status, results);
  update();
}

// The checkpoints of a run; after the last one, the model itself.
function checkpointSlider(ctx, steps, checkpoint, onchange) {
  const format = (index) =>
    steps[index] === undefined ? "the model" : `step ${steps[index].toLocaleString("en")}`;
  const value = checkpoint === null ? steps.length : steps.indexOf(checkpoint);
  const change = (index) => {
    ctx.set({ checkpoint: steps[index] ?? null });
    onchange();
  };
  return slider("Checkpoint", { min: 0, max: steps.length, value, format }, change);
}

// A button that becomes a chart of all checkpoints.
function checkpointComparison(ctx, steps, request) {
  const compare = async () => {
    compareButton.disabled = true;
    const answers = await requestCheckpoints(ctx, steps, request);
    if (!answers) return;
    compareButton.replaceWith(
      probabilityChart(answers, request.candidates[0], {
        title: "Probability by checkpoint",
        name: "checkpoints",
        x: steps.map(String),
        xName: "checkpoint",
        caption: "One point for each checkpoint of the run.",
      }),
    );
  };
  const compareButton = button("Compare all checkpoints", compare);
  return h("div", { class: "spaced" }, compareButton);
}

// The answers for the first blank, one after the other, so that the server stays free for others.
// Null after an error, which the status shows.
async function requestCheckpoints(ctx, steps, request) {
  const answers = [];
  try {
    for (const step of steps) {
      ctx.showStatus(`Checkpoint ${answers.length + 1} of ${steps.length} …`);
      const body = { ...request, layers: false, checkpoint: step };
      const { blanks } = await ctx.request("fill", body);
      answers.push(getBlankAnswer(blanks[0]));
    }
  } catch (error) {
    if (error.name !== "AbortError") ctx.showStatus(error.message, true);
    return null;
  }
  ctx.showStatus("All checkpoints are done.");
  return answers;
}

function blankSection(blank, name, guess) {
  const answer = getBlankAnswer(blank);
  return h(
    "section",
    {},
    h("h2", {}, name, describeOriginal(blank)),
    h(
      "div",
      { class: "cards" },
      h(
        "div",
        { class: "card" },
        h("h3", {}, "The model’s prediction"),
        blankBars(answer, { caption: name }),
        h("p", { class: "soft small" }, describeEntropy(answer.entropy)),
      ),
      blank.layers &&
        probabilityChart(blank.layers, guess, {
          title: "Probability by layer",
          name: "layers",
          x: blank.layers.map((_, layer) => String(layer)),
          xName: "after layer",
          caption:
            "The prediction head applied to the hidden state after each layer; " +
            "layer 0 is the embeddings.",
        }),
    ),
    blank.layers && [
      h("h3", { class: "spaced" }, "Most probable at each layer"),
      layerTable(blank.layers, name),
    ],
  );
}

function layerTable(layers, name) {
  const formatPieces = (top) =>
    top
      .slice(0, 4)
      .map(({ token, probability }) => `${formatToken(token)} ${formatPercent(probability)}`)
      .join(" · ");
  return table(
    ["After layer", "Most probable", { text: "Entropy, bits", number: true }],
    layers.map(({ top, entropy }, layer) => [
      layer === 0 ? "0 (embeddings)" : String(layer),
      formatPieces(top),
      entropy.toFixed(1),
    ]),
    { caption: `Most probable pieces for ${name} at each layer`, className: "fit" },
  );
}

// The probabilities of the original piece, the guess, and the most probable piece.
function probabilityChart(answers, guess, options) {
  const originals = answers.map((answer) => answer.original ?? null);
  const series = [];
  if (originals.every(Boolean))
    series.push({
      name: `“${formatToken(originals[0].token)}” (original)`,
      values: originals.map(({ probability }) => probability),
      colour: "third",
    });
  if (guess && answers.every(({ candidates }) => candidates?.length))
    series.push({
      name: `“${guess}” (yours)`,
      values: answers.map(({ candidates }) => candidates[0].probability),
      colour: "second",
    });
  series.push({
    name: "most probable",
    values: answers.map(({ top }) => top[0].probability),
    dashed: true,
    colour: "first",
  });
  return lineChart({ series, low: 0, format: formatPercent, ...options });
}

function describeGuess(blank, guess) {
  const { top, candidates } = getBlankAnswer(blank);
  const [best] = top;
  const text =
    `The model predicts “${formatToken(best.token)}” ` + `with ${formatPercent(best.probability)}.`;
  if (!guess) return text;
  const probability =
    candidates?.[0]?.probability ??
    top.find(({ token }) => token === guess.toLowerCase())?.probability;
  return probability === undefined
    ? `${text} Your “${guess}” is not among its top ${top.length}.`
    : `${text} It gives your “${guess}” ${formatPercent(probability)}.`;
}
