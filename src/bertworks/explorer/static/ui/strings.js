// Parts of texts.

// Offsets count code points; JavaScript's strings do not.
export const sliceText = (text, start, end) => [...text].slice(start, end).join("");

// The lines of a text that are not empty.
export const splitLines = (text) => splitTrimmed(text, "\n");

export const splitTrimmed = (text, separator) =>
  text
    .split(separator)
    .map((part) => part.trim())
    .filter(Boolean);
