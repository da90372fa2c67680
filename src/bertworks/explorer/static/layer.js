// The steps of one layer for one piece and one head, from the numbers of a view: the page computes
// what needs no weight matrix. The names of the steps are those of `inference/layer_steps.py`.

// Numbers coded in base64: float32, or int16 with a scale for each row.
export function decode({ shape, dtype, scales, base64 }) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const width = shape.at(-1);
  const coded = new (dtype === "int16" ? Int16Array : Float32Array)(bytes.buffer);
  const scale = (one, at) => one * scales[Math.floor(at / width)];
  const values = scales ? Float32Array.from(coded, scale) : coded;
  return { width, row: (at) => values.subarray(at * width, (at + 1) * width) };
}

const decoded = new WeakMap();
function numbers(coded) {
  if (!decoded.has(coded)) decoded.set(coded, decode(coded));
  return decoded.get(coded);
}

// The steps; [numbers] of the piece each, but `scores` and `weights` are one for each piece.
export function layerSteps(data, token, head) {
  const row = (name, at = token) => numbers(data.numbers[name]).row(at);
  const count = data.pieces.tokens.length;
  const isRotary = "rotated_query" in data.numbers;
  const query = isRotary ? "rotated_query" : "query";
  const key = isRotary ? "rotated_key" : "key";
  const ofHead = (name, at = token, one = head) => slice(row(name, at), one, data.head_size);
  const steps = { input: row("input") };
  if (data.norm_first) steps.attention_input = normed(data, "attention_input", steps.input);
  for (const name of ["query", "key", "value", "rotated_query", "rotated_key"])
    if (name in data.numbers) steps[name] = ofHead(name);
  const places = Array.from({ length: count }, (_, at) => at);
  const root = Math.sqrt(data.head_size);
  const scored = (one) =>
    places.map((at) =>
      sees(data, token, at)
        ? dot(ofHead(query, token, one), ofHead(key, at, one)) / root
        : -Infinity,
    );
  steps.keys = places.map((at) => ofHead(key, at));
  steps.values = places.map((at) => ofHead("value", at));
  const all = Array.from({ length: data.heads }, (_, one) => scored(one));
  steps.scores = all[head];
  steps.all_weights = all.map(softmax);
  steps.weights = steps.all_weights[head];
  steps.context = steps.all_weights.flatMap((weights, one) =>
    weighted(
      weights,
      places.map((at) => ofHead("value", at, one)),
    ),
  );
  steps.attention_output = row("attention_output");
  steps.attention_sum = sum(steps.input, steps.attention_output);
  steps.feed_forward_input = normed(data, "feed_forward_input", steps.attention_sum);
  steps.intermediate = row("intermediate");
  if (data.gated) steps.gate = row("gate");
  const activate = ACTIVATIONS[data.activation];
  steps.activated = Array.from(
    steps.intermediate,
    (one, at) => activate(one) * (data.gated ? steps.gate[at] : 1),
  );
  steps.feed_forward_output = row("feed_forward_output");
  const before = data.norm_first ? steps.attention_sum : steps.feed_forward_input;
  steps.feed_forward_sum = sum(before, steps.feed_forward_output);
  steps.output = normed(data, "output", steps.feed_forward_sum);
  const own = row("output");
  steps.difference = Math.max(...steps.output.map((one, at) => Math.abs(one - own[at])));
  return steps;
}

// Whether a piece attends to another.
export const sees = ({ causal, window }, from, to) =>
  !(causal && to > from) && !(window !== null && Math.abs(to - from) > window);

export const slice = (values, head, size) => values.subarray(head * size, (head + 1) * size);
export const dot = (one, two) => one.reduce((total, value, at) => total + value * two[at], 0);
const sum = (one, two) => Array.from(one, (value, at) => value + two[at]);

function softmax(scores) {
  const largest = Math.max(...scores);
  const powers = scores.map((one) => Math.exp(one - largest));
  const total = powers.reduce((one, two) => one + two);
  return powers.map((one) => one / total);
}

const weighted = (weights, rows) =>
  Array.from(rows[0], (_, at) => rows.reduce((total, row, k) => total + weights[k] * row[at], 0));

export function moments(values) {
  const mean = values.reduce((one, two) => one + two) / values.length;
  const variance = values.reduce((total, one) => total + (one - mean) ** 2, 0) / values.length;
  return { mean, variance };
}

// A vector after the norm of a step; unchanged if the layer has no norm there.
function normed(data, step, values) {
  const norm = data.norms[step];
  if (!norm) return Array.from(values);
  const [weight, bias] = [norm.weight, norm.bias].map((one) => one && numbers(one).row(0));
  const { mean, variance } = moments(values);
  const scale = 1 / Math.sqrt(variance + norm.eps);
  return Array.from(values, (one, at) => (one - mean) * scale * weight[at] + (bias ? bias[at] : 0));
}

// The distribution function of the normal distribution, by its series (Marsaglia 2004).
function phi(x) {
  if (Math.abs(x) > 8) return x > 0 ? 1 : 0;
  let [term, total] = [x, x];
  for (let n = 3; Math.abs(term) > 1e-16; n += 2) {
    term *= (x * x) / n;
    total += term;
  }
  return 0.5 + (total * Math.exp((-x * x) / 2)) / Math.sqrt(2 * Math.PI);
}

export const ACTIVATIONS = {
  gelu: (x) => x * phi(x),
  gelu_new: (x) => (x / 2) * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
  relu: (x) => Math.max(0, x),
  silu: (x) => x / (1 + Math.exp(-x)),
  tanh: Math.tanh,
};
