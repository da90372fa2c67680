// The bar at the top: the model, the link of the view, light and dark.
import { copyButton } from "./clipboard.js";
import { getTheme, switchTheme } from "./theme.js";
import { button, select } from "./ui/controls.js";
import { h, replaceContent } from "./ui/dom.js";

export function drawToolbar(model, models, { onmodel, ontheme }) {
  replaceContent(
    document.getElementById("bar"),
    h("span", { class: "brand" }, "bertworks ", h("span", { class: "soft" }, "explorer")),
    modelChooser(model, models, onmodel),
    copyButton("Copy link of this view", () => location.href, "Copy link"),
    themeButton(ontheme),
  );
}

function modelChooser(model, models, onmodel) {
  if (models.length < 2) return h("span", { class: "soft small" }, model.name);
  const names = models.map(({ name }) => name);
  const control = select(names, model.name, onmodel);
  control.id = "model";
  return h("span", {}, h("label", { for: "model" }, "Model "), control);
}

function themeButton(ontheme) {
  const name = getTheme() === "auto" ? "system" : getTheme();
  const change = async () => {
    switchTheme();
    await ontheme();
    document.getElementById("theme").focus();
  };
  const element = button("", change, {
    class: "small",
    id: "theme",
    "aria-label": `Colours: ${name}`,
  });
  element.append(h("span", { class: "long" }, "Colours: "), name);
  return element;
}
