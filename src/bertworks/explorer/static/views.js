// All views, in the order of the navigation. `load` imports the module that shows a view.

export const GROUPS = [
  "Words in context",
  "Inside the network",
  "What a prediction depends on",
  "Tasks",
];

export const VIEWS = [
  {
    id: "fill",
    title: "Fill in the blank",
    group: "Words in context",
    uses: "fill",
    inFile: true,
    about: "Mask words and see what the model predicts for them from both sides of the text.",
    load: () => import("./views/fill.js"),
  },
  {
    id: "guess",
    title: "What a blank would be",
    group: "Words in context",
    uses: "fill",
    inFile: true,
    about:
      "Guess a masked word yourself, then see how the model’s prediction forms, layer by layer " +
      "and checkpoint by checkpoint.",
    load: () => import("./views/guess.js"),
  },
  {
    id: "next",
    title: "Next word, both ways",
    group: "Words in context",
    uses: "fill",
    inFile: true,
    about:
      "The same blank, predicted from the left context only, as a text generator does, and " +
      "from both sides, as BERT does.",
    load: () => import("./views/next-word.js"),
  },
  {
    id: "contexts",
    title: "A word in context",
    group: "Words in context",
    uses: "contexts",
    about:
      "One word in several sentences. Its vectors differ by meaning; its static embedding is " +
      "always the same.",
    load: () => import("./views/contexts.js"),
  },
  {
    id: "pieces",
    title: "Pieces",
    group: "Inside the network",
    uses: "pieces",
    inFile: true,
    about:
      "How the tokenizer splits a text: pieces with their ids, segments and positions. " +
      "Rare words are split.",
    load: () => import("./views/pieces.js"),
  },
  {
    id: "steps",
    title: "From text to answer",
    group: "Inside the network",
    uses: "steps",
    inFile: true,
    about: "One prediction, step by step, with the computed shapes and numbers.",
    load: () => import("./views/steps.js"),
  },
  {
    id: "layer",
    title: "How attention works",
    group: "Inside the network",
    uses: "layer",
    inFile: true,
    about:
      "One layer, step by step, for one piece and one head, with the model’s own numbers, down " +
      "to its trained weights. “Attention is all you need” describes it in section 3.",
    load: () => import("./views/layer.js"),
  },
  {
    id: "attention",
    title: "Attention",
    group: "Inside the network",
    uses: "attention",
    inFile: true,
    about:
      "Which words each head attends to, how much each head matters, and tests of claims about " +
      "heads.",
    load: () => import("./views/attention.js"),
  },
  {
    id: "pair",
    title: "Minimal pair",
    group: "What a prediction depends on",
    uses: "pair",
    about:
      "Two texts that differ slightly, aligned: what changes in the prediction, the vectors " +
      "and the attention.",
    load: () => import("./views/minimal-pair.js"),
  },
  {
    id: "occlusion",
    title: "Which words decided",
    group: "What a prediction depends on",
    uses: "occlusion",
    inFile: true,
    about:
      "Hides each word in turn. The more the probability falls, the more the prediction depends " +
      "on that word.",
    load: () => import("./views/occlusion.js"),
  },
  {
    id: "follow",
    title: "Next sentence",
    group: "Tasks",
    uses: "next-sentence",
    about: "Does the second sentence follow the first? Edit either and watch the probability.",
    load: () => import("./views/next-sentence.js"),
  },
  {
    id: "classify",
    title: "Classify",
    group: "Tasks",
    uses: "classify",
    about: "The label of a text, and the probability of each label.",
    load: () => import("./views/classify.js"),
  },
  {
    id: "tag",
    title: "Tag",
    group: "Tasks",
    uses: "tag",
    about: "The tag of every word, and the entities that the tags mark.",
    load: () => import("./views/tag.js"),
  },
  {
    id: "answer",
    title: "Answer",
    group: "Tasks",
    uses: "answer",
    about:
      "The answer to a question, marked in the passage; or no answer, if the passage has none.",
    load: () => import("./views/answer.js"),
  },
  {
    id: "corpus",
    title: "Answer from a corpus",
    group: "Tasks",
    uses: "corpus",
    about:
      "The best answers to a question in the passages of the server’s corpus, each marked in its " +
      "passage.",
    load: () => import("./views/corpus.js"),
  },
  {
    id: "similarity",
    title: "Similarity",
    group: "Tasks",
    uses: "similarity",
    about: "How similar the texts of a list are: the cosines of their vectors.",
    load: () => import("./views/similarity.js"),
  },
  {
    id: "search",
    title: "Search",
    group: "Tasks",
    uses: "search",
    about: "The pasted texts that are nearest in meaning to your query.",
    load: () => import("./views/search.js"),
  },
];

export const findView = (id) => VIEWS.find((view) => view.id === id);

// What a model is for comes first: a classifier opens with its labels, an encoder with
// similarities.
const OPENING = ["fill", "classify", "tag", "answer", "similarity", "steps"].map(findView);

// The view that opens first: the first of those that a model has.
export const selectOpeningView = (model, source) =>
  [...OPENING, ...VIEWS].find((view) => !explainMissing(view, model, source)) ?? VIEWS[0];

// Why a model lacks what a view uses; null if it does not, or is not loaded yet.
export function explainLack(model, name) {
  if (!model?.views) return null;
  if (!(name in model.views)) throw new Error(`The server does not know the view “${name}”.`);
  return model.views[name];
}

// Why a view is not available; null if it is.
export function explainMissing(view, model, source) {
  if (source.data && !view.inFile)
    return (
      "This page is a file and cannot compute. " + "This view needs a server: bertworks serve MODEL"
    );
  return explainLack(model, view.uses);
}
