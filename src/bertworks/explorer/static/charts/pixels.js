// The image of a matrix.
import { getRgb } from "./colours.js";

// `strengths` are from -1 to 1, row by row. Strength is opacity, so that the image fits any
// background; negative numbers have the second colour.
export function createImage(height, width, strengths) {
  const image = new ImageData(width, height);
  const [positive, negative] = ["first", "second"]
    .map(getRgb)
    .map(([red, green, blue]) => red | (green << 8) | (blue << 16));
  const pixels = new Uint32Array(image.data.buffer);
  for (let index = 0; index < strengths.length; index++) {
    const strength = strengths[index];
    const opacity = Math.min(255, 255 * Math.abs(strength));
    pixels[index] = (strength < 0 ? negative : positive) | (opacity << 24);
  }
  return image;
}
