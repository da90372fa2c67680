// Copy a text to the clipboard.
import { button } from "./ui/controls.js";
import { h } from "./ui/dom.js";

// A button that copies what `getText` returns.
export function copyButton(label, getText, name = "Copy") {
  const element = button(
    name,
    async () => {
      const isCopied = await writeClipboard(getText());
      element.textContent = isCopied ? "Copied" : "Select and copy";
      setTimeout(() => {
        element.textContent = name;
      }, 1500);
    },
    { class: "small", "aria-label": label, "aria-live": "polite" },
  );
  return element;
}

// Only secure pages have the clipboard: elsewhere, what is selected is copied.
async function writeClipboard(text) {
  if (navigator.clipboard)
    return navigator.clipboard.writeText(text).then(
      () => true,
      () => false,
    );
  const textArea = h("textarea", { class: "visually-hidden", value: text });
  document.body.append(textArea);
  textArea.select();
  const isCopied = document.execCommand("copy");
  textArea.remove();
  return isCopied;
}
