// One layer, step by step, for one piece and one head.
import { explorerCallExamples } from "../calls.js";
import { attentionCards } from "../layer/attention-cards.js";
import { feedForwardCards } from "../layer/feed-forward-cards.js";
import { computeLayerSteps } from "../layer/steps.js";
import { textForm } from "../text-form.js";
import { addArrowKeys, button, field, select } from "../ui/controls.js";
import { h, replaceKeepingFocus } from "../ui/dom.js";
import { formatCount } from "../ui/format.js";
import { shape } from "../ui/shape.js";

export function show(root, ctx) {
  const results = h("div", {});
  const isFile = Boolean(ctx.source.data);
  const numLayers = isFile ? ctx.source.data.layers.length : ctx.model.layers;
  const getIndex = (key, count, fallback) => Math.min(ctx.getNumber(key, fallback), count - 1);
  let [data, examples, firstToken, firstHead] = [];

  const update = ctx.createUpdate(async (signal) => {
    const { body, maskedWords } = await form.read(signal);
    const layer = getIndex("layer", numLayers, 0);
    data = await ctx.request("layer", { ...body, layer }, signal);
    firstToken = data.pieces.words[maskedWords[0] ?? 0]?.tokens[0] ?? 0;
    firstHead = null;
    examples = isFile ? null : explorerCallExamples(ctx, "layer", { ...body, layer });
    draw();
    const count = formatCount(data.pieces.tokens.length, "piece");
    return `Layer ${layer + 1} of ${ctx.model.layers}, ${count}.`;
  });

  function set(changes) {
    ctx.set(changes);
    if ("layer" in changes) update();
    else draw();
  }

  function draw() {
    const token = getIndex("token", data.pieces.tokens.length, firstToken);
    firstHead ??= findTypicalHead(data, token);
    const head = getIndex("head", data.heads, firstHead);
    replaceKeepingFocus(
      results,
      controls(data, numLayers, token, head, set),
      isFile && numLayers < data.layers && missingLayersNote(data, numLayers),
      layerCards(ctx, data, token, head, set),
      examples,
    );
  }

  const changeText = () => {
    ctx.set({ token: null });
    update();
  };
  const form = textForm(ctx, changeText, { hasPair: true, hasWords: !isFile });
  root.append(form.element, ctx.status, results);
  update();
}

// The head whose attention has about one half in one place: neither all nor evenly spread.
function findTypicalHead(data, token) {
  const distances = computeLayerSteps(data, token, 0).all_weights.map((weights) =>
    Math.abs(Math.max(...weights) - 0.5),
  );
  return distances.indexOf(Math.min(...distances));
}

function controls(data, numLayers, token, head, set) {
  const numberOptions = (count) =>
    Array.from({ length: count }, (_, index) => [String(index), String(index + 1)]);
  const layerSelect = select(numberOptions(numLayers), String(data.layer), (layer) =>
    set({ layer }),
  );
  const headSelect = select(numberOptions(data.heads), String(head), (index) =>
    set({ head: index }),
  );
  const pieces = h(
    "div",
    { class: "words", role: "group", "aria-label": "Pieces; press one to follow it" },
    data.pieces.tokens.map((piece, index) =>
      button(piece.token, () => set({ token: index }), {
        class: "mono",
        "aria-pressed": index === token,
        "data-key": `piece-${index}`,
      }),
    ),
  );
  return h(
    "div",
    { class: "form piece-controls" },
    h(
      "div",
      { class: "row end" },
      field("Layer", layerSelect),
      field("Head", headSelect),
      h(
        "div",
        { class: "grow field" },
        h("span", { class: "soft small" }, "Piece to follow"),
        addArrowKeys(pieces),
      ),
    ),
  );
}

const missingLayersNote = (data, numLayers) =>
  h(
    "p",
    { class: "soft small" },
    `This page contains ${numLayers} of ${formatCount(data.layers, "layer")}. ` +
      "All: bertworks serve.",
  );

function layerCards(ctx, data, token, head, set) {
  const pieces = data.pieces.tokens.map((piece) => piece.token);
  const layer = {
    ctx,
    data,
    steps: computeLayerSteps(data, token, head),
    set,
    pieces,
    token,
    head,
    piece: `“${pieces[token]}”`,
  };
  const cards = [...attentionCards(layer), ...feedForwardCards(layer)];
  const list = h(
    "ol",
    { class: "steps" },
    cards.map(({ title, size, body }, index) =>
      h(
        "li",
        { class: "card", tabindex: -1 },
        h("h2", {}, `${index + 1}. ${title} `, shape(...size)),
        body,
      ),
    ),
  );
  const goTo = (card) => {
    card.scrollIntoView({ block: "start" });
    card.focus({ preventScroll: true });
  };
  const links = h(
    "div",
    { class: "flow", role: "group", "aria-label": "Steps; press one to go to it" },
    cards.map(({ name }, index) =>
      button(`${index + 1} ${name}`, () => goTo(list.children[index]), { class: "small" }),
    ),
  );
  return [layerNotice(data), addArrowKeys(links), list];
}

// What is special about this layer, as sentences.
function layerNotice(data) {
  const { causal, window, rope_theta: theta, norm_first: isPreNorm } = data;
  const sentences = [
    causal && "This model is causal: a piece attends only to itself and to earlier pieces.",
    window !== null && `This layer is local: a piece attends to pieces at most ${window} away.`,
    theta !== null &&
      "Positions are rotary: queries and keys are rotated, and no position is " +
        "added to the embeddings.",
    "score_bias" in data.numbers &&
      "A term that depends on the distance of two pieces is added to their score.",
    isPreNorm &&
      "This model normalises before each half of a layer (pre-norm), where BERT " +
        "normalises after it.",
    describeSharing(data),
  ].filter(Boolean);
  return sentences.length > 0 && h("p", { class: "notice" }, sentences.join(" "));
}

function describeSharing({ same_weights: shared, layers }) {
  if (shared.length < 2) return null;
  if (shared.length === layers) return `All ${layers} layers share these weights.`;
  return `Layers ${shared.map((layer) => layer + 1).join(", ")} share these weights.`;
}
