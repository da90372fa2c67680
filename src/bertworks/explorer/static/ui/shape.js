// The shape of a tensor: [9, 128].
import { h } from "./dom.js";

export const shape = (...sizes) => h("span", { class: "shape mono" }, `[${sizes.join(", ")}]`);
