// Elements of the page: how they are built and how their content is replaced.

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

// h("button", { class: "chip", onclick: f, "aria-pressed": true }, "text", node, [more])
// A function that returns an element is named by what it builds, here and in all modules.
export function h(name, properties = {}, ...children) {
  return complete(document.createElement(name), properties, children);
}

export function s(name, properties = {}, ...children) {
  return complete(document.createElementNS(SVG_NAMESPACE, name), properties, children);
}

function complete(element, properties, children) {
  for (const [key, value] of Object.entries(properties ?? {})) {
    if (isAbsent(value)) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "style") setStyle(element, value);
    else if (key === "value") element.value = value;
    else element.setAttribute(key, value === true && !key.startsWith("aria-") ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => !isAbsent(child)));
  return element;
}

const isAbsent = (value) => value === null || value === undefined || value === false;

function setStyle(element, style) {
  for (const [property, value] of Object.entries(style)) element.style.setProperty(property, value);
}

// Replace an element's content; what was unfolded stays so if there are as many parts as before.
export function replaceContent(element, ...children) {
  const wasOpen = [...element.querySelectorAll("details")].map((details) => details.open);
  element.replaceChildren(...children.flat(Infinity).filter(Boolean));
  const foldable = element.querySelectorAll("details");
  if (foldable.length === wasOpen.length)
    for (const [index, isOpen] of wasOpen.entries()) foldable[index].open ||= isOpen;
  return element;
}

// Replace an element's content; the focus stays at the control of the same key or place.
export function replaceKeepingFocus(element, ...children) {
  const active = element.contains(document.activeElement) ? document.activeElement : null;
  const listControls = () => [...element.querySelectorAll("button, select, input")];
  const key = active?.dataset.key;
  const index = active ? listControls().indexOf(active) : -1;
  replaceContent(element, children);
  if (!active) return;
  const control = (key && element.querySelector(`[data-key="${key}"]`)) || listControls()[index];
  control?.focus();
}

let lastId = 0;
export const createId = (name) => `${name}-${++lastId}`;
