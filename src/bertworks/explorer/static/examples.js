// The texts that a view shows at first: each has what the view teaches (tests/explorer measures it
// with `mini`).

// Both sides are needed: "the ___" alone says little, "largest city" says it.
export const SENTENCE = { text: "It is the second largest city in the country.", word: 3 };

export const MINIMAL_PAIR = {
  masked: ["The book [MASK] written in 1890.", "The books [MASK] written in 1890."],
  plain: ["The film was good, and everybody laughed.", "The film was bad, and everybody laughed."],
};

export const SENTENCE_PAIR = ["He was born in Paris in 1890.", "He died in London in 1950."];

export const QUESTION = {
  text: "Who discovered radium?",
  pair:
    "Radium was discovered by Marie and Pierre Curie in 1898. They found it in a mineral " +
    "from Joachimsthal.",
};
const PAIR = { text: "A man is playing a guitar.", pair: "Somebody plays an instrument." };

// A text, or a pair, that fits a model's task.
export function selectExample(model) {
  const has = (view) => model.views?.[view] === null;
  if (has("answer")) return QUESTION;
  if (model.pairs) return PAIR;
  if (has("tag")) return { text: "Ada Lovelace was born in London." };
  if (has("classify")) return { text: "A fine film." };
  return { text: SENTENCE.text };
}

export const CONTEXTS = {
  word: "bank",
  texts: [
    "He sat on the bank of the river.",
    "The boat lay at the muddy bank of the stream.",
    "She asked the bank for a loan.",
    "The bank raised the interest on its loans.",
  ],
};

export const SIMILARITY_TEXTS = [
  "A man is playing a guitar.",
  "Somebody plays an instrument.",
  "The stock market fell today.",
  "Shares lost value this morning.",
];

export const SEARCH = {
  query: "borrowing money from a bank",
  texts: [
    "The Danube flows into the Black Sea.",
    "A verb says what somebody does.",
    "Interest is what one pays for a loan.",
    "Roots take water from the soil.",
    "The king was crowned in the cathedral.",
  ],
};
