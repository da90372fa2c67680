// Attention weights as matrices: read from bytes, and merged into words.

// The weights of an answer: `getMatrix(layer, head, options)` is a matrix with the names of its
// rows. Options: `merge` pieces into words, `hide` special tokens, take the `mean` over the heads.
export function decodeWeights({ pieces, weights }) {
  const [numLayers, numHeads, numTokens] = weights.shape;
  const bytes = Uint8Array.from(atob(weights.base64), (letter) => letter.charCodeAt(0));
  const matrixSize = numTokens * numTokens;

  // Rows sum to 1 over all tokens. The attention to a word is the sum over its pieces, from a word
  // the mean (Clark et al. 2019).
  function getMatrix(layer, head, options) {
    const groups = groupTokens(pieces, options);
    const count = groups.length;
    const groupOfToken = new Int32Array(numTokens).fill(-1);
    for (const [index, { tokens }] of groups.entries())
      for (const token of tokens) groupOfToken[token] = index;
    const values = new Float32Array(count * count);
    const [firstHead, lastHead] = options.mean ? [0, numHeads - 1] : [head, head];
    const numMerged = lastHead - firstHead + 1;
    for (let source = firstHead; source <= lastHead; source++) {
      let byte = (layer * numHeads + source) * matrixSize;
      for (let from = 0; from < numTokens; from++) {
        const row = groupOfToken[from];
        const unit = row < 0 ? 0 : 1 / (weights.scale * groups[row].tokens.length * numMerged);
        for (let to = 0; to < numTokens; to++, byte++) {
          const column = groupOfToken[to];
          if (unit && column >= 0) values[row * count + column] += bytes[byte] * unit;
        }
      }
    }
    return {
      count,
      values,
      names: groups.map(({ name }) => name),
      value: (row, column) => values[row * count + column],
    };
  }

  return { numLayers, numHeads, getMatrix };
}

// The tokens of each row: one, or those of a word if pieces are merged.
function groupTokens({ tokens, words }, { merge, hide }) {
  const groups = [];
  for (const [position, { token, word, special }] of tokens.entries()) {
    if (hide && special) continue;
    const last = groups.at(-1);
    if (merge && last && word !== null && last.word === word) {
      last.tokens.push(position);
      continue;
    }
    const isNamedByWord = merge && word !== null && token !== "[MASK]";
    groups.push({ word, tokens: [position], name: isNamedByWord ? words[word].text : token });
  }
  return groups;
}
