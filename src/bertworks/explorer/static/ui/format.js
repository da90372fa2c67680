// Numbers and words as the page writes them.

export const capitalize = (text) => text.replace(/^[a-z]/, (letter) => letter.toUpperCase());

// "1 layer", "4 layers".
export const formatCount = (count, noun) =>
  `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

export function formatPercent(value) {
  if (value >= 0.0995) return `${(100 * value).toFixed(0)} %`;
  if (value >= 0.000995) return `${(100 * value).toFixed(1)} %`;
  if (value >= 1e-6) return `${(100 * value).toFixed(4).replace(/(\.0*[1-9]).*/, "$1")} %`;
  return value > 0 ? "< 0.0001 %" : "0 %";
}

export const formatFixed = (value, digits = 2) => typesetMinus(value.toFixed(digits));

const typesetMinus = (text) =>
  Number(text) === 0 ? text.replace("-", "") : text.replace("-", "−");

export const formatSigned = (value, digits = 3) =>
  (value > 0 ? "+" : "") + formatFixed(value, digits);

// A change of a probability in percentage points, with one digit that is not 0.
export function formatPoints(value) {
  const points = 100 * value;
  if (Math.abs(points) >= 0.0995) return `${formatSigned(points, 1)} points`;
  const size = Math.abs(points)
    .toFixed(4)
    .replace(/(\.0*[1-9]).*/, "$1");
  if (Number(size) === 0) return "0 points";
  return `${points < 0 ? "−" : "+"}${size} points`;
}

// A piece without the sign that its tokenizer gives to pieces within or at the start of a word.
export const formatToken = (token) => token.replace(/^##/, "·").replace(/^[Ġ▁]/, "");
