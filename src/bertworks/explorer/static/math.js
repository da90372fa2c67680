// Vectors and functions of numbers.

export const dotProduct = (first, second) =>
  first.reduce((sum, value, index) => sum + value * second[index], 0);

export const addVectors = (first, second) =>
  Array.from(first, (value, index) => value + second[index]);

export function softmax(scores) {
  const largest = Math.max(...scores);
  const exponentials = scores.map((score) => Math.exp(score - largest));
  const total = exponentials.reduce((sum, value) => sum + value);
  return exponentials.map((value) => value / total);
}

export const sumWeighted = (weights, vectors) =>
  Array.from(vectors[0], (_, index) =>
    vectors.reduce((sum, vector, row) => sum + weights[row] * vector[index], 0),
  );

export function computeMoments(values) {
  const mean = values.reduce((sum, value) => sum + value) / values.length;
  const variance = values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / values.length;
  return { mean, variance };
}

// The distribution function of the normal distribution, by its series (Marsaglia 2004).
function computeNormalCdf(x) {
  if (Math.abs(x) > 8) return x > 0 ? 1 : 0;
  let [term, sum] = [x, x];
  for (let n = 3; Math.abs(term) > 1e-16; n += 2) {
    term *= (x * x) / n;
    sum += term;
  }
  return 0.5 + (sum * Math.exp((-x * x) / 2)) / Math.sqrt(2 * Math.PI);
}

export const ACTIVATIONS = {
  gelu: (x) => x * computeNormalCdf(x),
  gelu_new: (x) => (x / 2) * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
  relu: (x) => Math.max(0, x),
  silu: (x) => x / (1 + Math.exp(-x)),
  tanh: Math.tanh,
};
