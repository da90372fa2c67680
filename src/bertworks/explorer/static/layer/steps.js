// The steps of one layer for one piece and one head, from the numbers of a view: the page computes
// what needs no weight matrix. The names of the steps are those of `inference/layer_steps.py`.
import {
  ACTIVATIONS,
  addVectors,
  computeMoments,
  dotProduct,
  softmax,
  sumWeighted,
} from "../math.js";

// A matrix coded in base64: float32, or int16 with a scale for each row.
export function decodeMatrix({ shape, dtype, scales, base64 }) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const width = shape.at(-1);
  const numbers = new (dtype === "int16" ? Int16Array : Float32Array)(bytes.buffer);
  const values = scales
    ? Float32Array.from(numbers, (number, index) => number * scales[Math.floor(index / width)])
    : numbers;
  return { width, row: (index) => values.subarray(index * width, (index + 1) * width) };
}

const decodedMatrices = new WeakMap();
function decodeOnce(matrix) {
  if (!decodedMatrices.has(matrix)) decodedMatrices.set(matrix, decodeMatrix(matrix));
  return decodedMatrices.get(matrix);
}

// Each step is the numbers of the piece, but `scores` and `weights` have a number for each piece,
// and `keys` and `values` a vector for each.
export function computeLayerSteps(data, token, head) {
  const steps = computeAttention(data, token, head);
  Object.assign(steps, computeFeedForward(data, token, steps.attention_sum));
  const expected = readRow(data, "output", token);
  steps.difference = Math.max(
    ...steps.output.map((value, index) => Math.abs(value - expected[index])),
  );
  return steps;
}

const readRow = (data, name, token) => decodeOnce(data.numbers[name]).row(token);

const readHead = (data, name, token, head) =>
  sliceHead(readRow(data, name, token), head, data.head_size);

function computeAttention(data, token, head) {
  const isRotary = "rotated_query" in data.numbers;
  const [query, key] = isRotary ? ["rotated_query", "rotated_key"] : ["query", "key"];
  const tokens = data.pieces.tokens.map((_, index) => index);
  const scale = Math.sqrt(data.score_divisor);
  const readBias = (other) =>
    "score_bias" in data.numbers
      ? sliceHead(readRow(data, "score_bias", token), other, tokens.length)
      : null;
  const computeScores = (other) => {
    const bias = readBias(other);
    return tokens.map((target) =>
      canAttend(data, token, target)
        ? dotProduct(readHead(data, query, token, other), readHead(data, key, target, other)) /
            scale +
          (bias ? bias[target] : 0)
        : -Infinity,
    );
  };

  const steps = { input: readRow(data, "input", token) };
  if (data.norm_first) steps.attention_input = normalize(data, "attention_input", steps.input);
  for (const name of ["query", "key", "value", "rotated_query", "rotated_key"])
    if (name in data.numbers) steps[name] = readHead(data, name, token, head);
  steps.keys = tokens.map((target) => readHead(data, key, target, head));
  steps.values = tokens.map((target) => readHead(data, "value", target, head));
  const scores = Array.from({ length: data.heads }, (_, other) => computeScores(other));
  steps.scores = scores[head];
  if ("score_bias" in data.numbers) steps.score_bias = readBias(head);
  steps.all_weights = scores.map(softmax);
  steps.weights = steps.all_weights[head];
  steps.context = steps.all_weights.flatMap((weights, other) =>
    sumWeighted(
      weights,
      tokens.map((target) => readHead(data, "value", target, other)),
    ),
  );
  steps.attention_output = readRow(data, "attention_output", token);
  steps.attention_sum = addVectors(steps.input, steps.attention_output);
  return steps;
}

function computeFeedForward(data, token, attentionSum) {
  const steps = {
    feed_forward_input: normalize(data, "feed_forward_input", attentionSum),
    intermediate: readRow(data, "intermediate", token),
  };
  if (data.gated) steps.gate = readRow(data, "gate", token);
  const activate = ACTIVATIONS[data.activation];
  steps.activated = Array.from(
    steps.intermediate,
    (value, index) => activate(value) * (data.gated ? steps.gate[index] : 1),
  );
  steps.feed_forward_output = readRow(data, "feed_forward_output", token);
  const residual = data.norm_first ? attentionSum : steps.feed_forward_input;
  steps.feed_forward_sum = addVectors(residual, steps.feed_forward_output);
  let result = steps.feed_forward_sum;
  if ("convolution" in data.numbers) {
    steps.convolution_input = normalize(data, "convolution_input", result);
    steps.convolution = readRow(data, "convolution", token);
    result = steps.convolution_sum = addVectors(steps.convolution_input, steps.convolution);
  }
  steps.output = normalize(data, "output", result);
  return steps;
}

// Whether the model lets a piece attend to another.
export const canAttend = ({ causal, window }, from, to) =>
  !(causal && to > from) && !(window !== null && Math.abs(to - from) > window);

export const sliceHead = (values, head, size) => values.subarray(head * size, (head + 1) * size);

// A vector after the norm of a step; unchanged if the layer has no norm there.
function normalize(data, step, values) {
  const norm = data.norms[step];
  if (!norm) return Array.from(values);
  const weight = decodeOnce(norm.weight).row(0);
  const bias = norm.bias && decodeOnce(norm.bias).row(0);
  const moments = computeMoments(values);
  const isLayerNorm = norm.kind === "layer"; // else the root mean square: without the mean
  const mean = isLayerNorm ? moments.mean : 0;
  const variance = moments.variance + (moments.mean - mean) ** 2;
  const scale = 1 / Math.sqrt(variance + norm.eps);
  return Array.from(
    values,
    (value, index) => (value - mean) * scale * weight[index] + (bias ? bias[index] : 0),
  );
}
