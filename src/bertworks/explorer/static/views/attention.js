// The attention of all heads: as maps, between two words, as measures; their effects; claims.
import { claimTest } from "../attention/claims.js";
import { headEffects, parseHeads } from "../attention/effects.js";
import { headGrid, pressHead } from "../attention/head-grid.js";
import { nameHeadOrMean } from "../attention/heads.js";
import { attentionLines } from "../attention/lines.js";
import { headMeasures } from "../attention/measures.js";
import { decodeWeights } from "../attention/weights.js";
import { wordPair } from "../attention/word-pair.js";
import { explorerCallExamples } from "../calls.js";
import { heatmap } from "../charts/heatmap.js";
import { KeyRequiredError } from "../source.js";
import { explainNoPrediction, textForm } from "../text-form.js";
import { checkbox, toggleGroup } from "../ui/controls.js";
import { h, replaceContent, replaceKeepingFocus } from "../ui/dom.js";
import { capitalize, formatCount, formatPercent } from "../ui/format.js";

export function show(root, ctx) {
  const [gridHolder, headHolder, pairHolder, measureHolder, claimHolder, examplesHolder] =
    Array.from({ length: 6 }, () => h("div", {}));
  const isFile = Boolean(ctx.source.data);
  const getOptions = () => ({
    merge: ctx.get("merge") === "1",
    hide: ctx.get("hide") === "1",
    mean: ctx.get("mean") === "1",
  });
  const getHead = () => [ctx.getNumber("layer", 0), ctx.getNumber("head", 0)];
  const getHeadsOff = () => parseHeads(ctx.get("off"));
  const effects = headEffects(ctx, { getHead, onpick: pickHead });
  let [weights, measures, prediction] = [];

  const update = ctx.createUpdate(async (signal) => {
    const input = await form.read(signal);
    const { body } = input;
    const headsOff = isFile ? [] : getHeadsOff();
    const answer = await ctx.request("attention", { ...body, ablated_heads: headsOff }, signal);
    const { reason, ...result } = await requestPrediction(ctx, input, signal);
    ({ prediction = null } = result);
    weights = decodeWeights(answer);
    measures = answer.measures;
    drawMaps();
    effects.show({ body, prediction, reason });
    if (!isFile) {
      const request = { ...body, ablated_heads: getHeadsOff() };
      replaceContent(examplesHolder, explorerCallExamples(ctx, "attention", request));
    }
    return describeSize(weights, answer.pieces);
  });

  function pickHead(layer, head) {
    const { mean } = getOptions();
    ctx.set({ layer, head });
    pressHead(gridHolder, layer, mean ? 0 : head, mean ? 1 : weights.numHeads);
    drawHead();
    effects.draw();
  }

  function drawMaps() {
    const [layer, head] = getHead();
    if (layer >= weights.numLayers || head >= weights.numHeads) ctx.set({ layer: 0, head: 0 });
    replaceContent(
      gridHolder,
      h("h2", {}, "All heads"),
      headGrid(weights, getOptions(), getHead(), pickHead),
    );
    drawHead();
    drawPair();
    drawMeasures();
  }

  // One head, large: as lines or as a matrix.
  function drawHead() {
    const [layer, head] = getHead();
    const matrix = weights.getMatrix(layer, head, getOptions());
    const name = nameHeadOrMean(layer, head, getOptions().mean);
    const hasLines = ctx.get("display", "lines") === "lines";
    const changeDisplay = (display) => {
      ctx.set({ display });
      drawHead();
    };
    replaceKeepingFocus(
      headHolder,
      h("h2", {}, name),
      toggleGroup(
        "Display",
        [
          ["lines", "Lines"],
          ["matrix", "Matrix"],
        ],
        ctx.get("display", "lines"),
        changeDisplay,
      ),
      hasLines ? headLines(matrix, name) : headMatrix(matrix, name),
    );
  }

  function headLines(matrix, name) {
    const getWord = (key) => {
      const index = ctx.getNumber(key, -1);
      return index < matrix.count ? index : -1;
    };
    const press = (side, index) => {
      ctx.set({ [side]: ctx.getNumber(side, -1) === index ? null : index });
      drawHead();
      drawPair();
      headHolder.querySelectorAll(`.tokens.${side} button`)[index]?.focus();
    };
    return attentionLines(matrix, `${name}: lines between words`, "attention-lines", {
      from: getWord("from"),
      to: getWord("to"),
      onpress: press,
    });
  }

  const headMatrix = ({ names, values, value }, name) =>
    heatmap({
      title: `${name}: matrix`,
      name: "attention-matrix",
      rows: names,
      columns: names,
      value,
      max: Math.max(...values),
      rowName: "from",
      columnName: "to",
      format: formatPercent,
      onpick(from, to) {
        ctx.set({ from, to });
        drawPair();
      },
      caption:
        "One row per attending word, one column per attended word. " +
        "Rows sum to 100 % if nothing is hidden.",
    });

  function drawPair() {
    const onchange = () => {
      drawHead();
      drawPair();
    };
    replaceKeepingFocus(
      pairHolder,
      h("h2", {}, "From one word to another"),
      wordPair(ctx, weights, getOptions(), { onchange, onpick: pickHead }),
    );
  }

  function drawMeasures() {
    replaceKeepingFocus(
      measureHolder,
      h("h2", {}, "What each head does"),
      headMeasures(ctx, measures, { onchange: drawMeasures, onpick: pickHead }),
    );
  }

  const optionBox = (key, label) =>
    checkbox(label, ctx.get(key) === "1", (isChecked) => {
      ctx.set({ [key]: isChecked ? 1 : null, from: null, to: null });
      drawMaps();
      effects.draw();
    });

  const changeText = () => {
    ctx.set({ off: null, from: null, to: null });
    update();
  };
  const form = textForm(ctx, changeText, { hasPair: true });
  form.element.append(
    h(
      "div",
      { class: "row", role: "group", "aria-label": "Display options" },
      optionBox("merge", "Merge pieces into words"),
      optionBox("hide", "Hide special tokens"),
      optionBox("mean", "Mean over the heads of a layer"),
    ),
  );
  root.append(
    form.element,
    ctx.status,
    h("div", { class: "columns" }, gridHolder, headHolder),
    pairHolder,
    measureHolder,
    effects.element,
    claimHolder,
    examplesHolder,
  );
  update().then(() => {
    if (getHeadsOff().length && prediction) effects.update();
  });
  if (isFile) return;
  const showHead = (layer, head) => {
    pickHead(layer, head);
    headHolder.scrollIntoView();
  };
  claimHolder.append(...claimTest(ctx, showHead));
}

// The prediction, or the reason why there is none: attention is shown without it, too.
async function requestPrediction(ctx, input, signal) {
  const reason = explainNoPrediction(ctx, input);
  if (reason) return { reason };
  try {
    return await ctx.request("predict", input.body, signal);
  } catch (error) {
    if (error.name === "AbortError" || error instanceof KeyRequiredError) throw error;
    return { reason: capitalize(error.message) };
  }
}

function describeSize({ numLayers, numHeads }, pieces) {
  const size = `${formatCount(numLayers, "layer")} with ${formatCount(numHeads, "head")}`;
  return `${size}${numLayers > 1 ? " each" : ""}, ${formatCount(pieces.tokens.length, "piece")}.`;
}
