// A sum of two vectors, and the norm of the sum.
import { describeMoments, formatNorm, formula, paragraph } from "./text.js";
import { vectorStrips } from "./vectors.js";

// `parts` are both vectors and the sum, and `[name, values]` is the result, each after its name.
// Without a norm of the step, the result is the sum.
export function sumAndNorm(data, parts, step, [name, values]) {
  const [first, second, sum] = parts.map(([part]) => part);
  const hasNorm = step in data.norms;
  return [
    formula(
      `${sum} = ${first} + ${second}`,
      hasNorm ? `${name} = ${formatNorm(data, step, sum)}` : `${name} = ${sum}`,
    ),
    hasNorm && paragraph(describeMoments(parts[2][1])),
    vectorStrips(parts),
    vectorStrips([[name, values]]),
  ];
}
