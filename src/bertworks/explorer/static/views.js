// All views, in the order of the navigation.
import answer from "./views/answer.js";
import attention from "./views/attention.js";
import classify from "./views/classify.js";
import contexts from "./views/contexts.js";
import fill from "./views/fill.js";
import guess from "./views/guess.js";
import layer from "./views/layer.js";
import minimalPair from "./views/minimal-pair.js";
import nextSentence from "./views/next-sentence.js";
import nextWord from "./views/next-word.js";
import occlusion from "./views/occlusion.js";
import pieces from "./views/pieces.js";
import search from "./views/search.js";
import similarity from "./views/similarity.js";
import steps from "./views/steps.js";
import tag from "./views/tag.js";

export const GROUPS = [
  "Words in context",
  "Inside the network",
  "What a prediction depends on",
  "Tasks",
];

export const VIEWS = [
  fill,
  guess,
  nextWord,
  contexts,
  pieces,
  steps,
  layer,
  attention,
  minimalPair,
  occlusion,
  nextSentence,
  classify,
  tag,
  answer,
  similarity,
  search,
];

// What a model is for comes first: a classifier opens with its labels, an encoder with
// similarities.
const OPENING = [fill, classify, tag, answer, similarity, steps];

// The view that opens first: the first of those that a model has.
export const selectOpeningView = (model, source) =>
  [...OPENING, ...VIEWS].find((view) => !explainMissing(view, model, source)) ?? VIEWS[0];

// Why a view is not available; null if it is.
export function explainMissing(view, model, source) {
  if (source.data && !view.inFile)
    return (
      "This page is a file and cannot compute. This view needs a server: " + "bertworks serve MODEL"
    );
  return model?.views?.[view.uses] ?? null;
}
