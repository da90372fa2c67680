// A text next to the pointer.
import { h } from "../ui/dom.js";

const tip = h("div", { class: "tip", "aria-hidden": "true" });

// Show a text at the place of an event; without a text, hide it.
export function showTip(event, text) {
  if (!tip.isConnected) document.body.append(tip);
  tip.textContent = text ?? "";
  if (!text) return;
  const { clientX, clientY } = event;
  const { width, height } = tip.getBoundingClientRect();
  const fitsBelow = clientY + 18 + height <= innerHeight;
  tip.style.left = `${Math.max(4, Math.min(clientX + 12, innerWidth - width - 4))}px`;
  tip.style.top = `${fitsBelow ? clientY + 16 : clientY - height - 8}px`;
}
