// The kinds of predictions, as `explorer/target_kinds.py` has them: how people read them, and the
// fields of a request. `outcome` is the field by which another outcome is chosen.
import {
  formatFixed,
  formatPercent,
  formatPoints,
  formatSigned,
  formatToken,
} from "./ui/format.js";

const KINDS = {
  blank: { title: "the blank", fields: ["blank", "token"], outcome: "token" },
  next: { title: "the next piece", fields: ["token"], outcome: "token" },
  "next-sentence": { title: "whether the second text follows", fields: [] },
  label: { title: "the label", fields: ["label"], outcome: "label" },
  value: { title: "the value", fields: [], isNumber: true },
  tag: { title: "the tag", fields: ["word", "tag"], outcome: "tag" },
  answer: {
    title: "the answer",
    fields: ["start", "end"],
    note:
      "The probability of its start times that of its end, among all tokens. " +
      "“Answer” compares the best spans only.",
  },
  replaced: { title: "whether the piece was replaced", fields: ["position"] },
};

// Whether the prediction is a value, as a regression has it, and not a probability.
export const isNumber = ({ kind }) => Boolean(KINDS[kind].isNumber);

// A target as a request has it: in answers it has more fields.
export const toRequestTarget = (target) =>
  Object.fromEntries(["kind", ...KINDS[target.kind].fields].map((key) => [key, target[key]]));

// The names of the outcomes that can be chosen instead of the most probable one.
export const listOutcomes = ({ target, distribution }) =>
  KINDS[target.kind].outcome ? distribution.map(({ name }) => name) : [];

// The target of a request with an outcome; null, the most probable one, if it is not in `names`.
export const selectOutcome = (target, names, name) =>
  names.includes(name) ? { ...toRequestTarget(target), [KINDS[target.kind].outcome]: name } : null;

export const describeTarget = (target) =>
  KINDS[target.kind].title + (isNumber(target) ? "" : ` “${formatToken(target.name)}”`);

// What a probability is of, where it needs to be said.
export const getTargetNote = ({ kind }) => KINDS[kind].note ?? null;

export const formatTargetValue = (target, value) =>
  isNumber(target) ? formatFixed(value, 3) : formatPercent(value);

export const formatTargetChange = (target, change) =>
  isNumber(target) ? formatSigned(change) : formatPoints(change);
