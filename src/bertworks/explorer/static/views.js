// All views, in the order of the navigation.
import attention from "./views/attention.js";
import contexts from "./views/contexts.js";
import fill from "./views/fill.js";
import follow from "./views/follow.js";
import guess from "./views/guess.js";
import layer from "./views/layer.js";
import next from "./views/next.js";
import occlusion from "./views/occlusion.js";
import pair from "./views/pair.js";
import pieces from "./views/pieces.js";
import steps from "./views/steps.js";
import { answer, classify, search, similarity, tag } from "./views/tasks.js";

export const GROUPS = [
  "Words in context",
  "Inside the network",
  "What a prediction depends on",
  "Tasks",
];
export const VIEWS = [
  fill,
  guess,
  next,
  contexts,
  pieces,
  steps,
  layer,
  attention,
  pair,
  occlusion,
  follow,
  classify,
  tag,
  answer,
  similarity,
  search,
];

// What a model is for comes first: a classifier opens with its labels, an encoder with
// similarities.
export const OPENING = [fill, classify, tag, answer, similarity, steps];
