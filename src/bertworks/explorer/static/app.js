// The page: which view is shown, of which model.
import { forgetColours } from "./charts/colours.js";
import { showTip } from "./charts/tooltip.js";
import { askForKey } from "./key-form.js";
import { formatLink } from "./links.js";
import { drawNavigation, parseAddress, updateLinks } from "./navigation.js";
import { createFileSource, createServerSource, KeyRequiredError } from "./source.js";
import { restoreTheme } from "./theme.js";
import { drawToolbar } from "./toolbar.js";
import { h, replaceContent } from "./ui/dom.js";
import { capitalize } from "./ui/format.js";
import { createContext } from "./view-context.js";
import { explainMissing, selectOpeningView, VIEWS } from "./views.js";

const data = document.getElementById("data");
const source = data ? createFileSource(JSON.parse(data.textContent)) : createServerSource();
const main = document.getElementById("main");
let models = [];
let controller = new AbortController(); // aborted when the page leaves a view
let sharedValues = {}; // of the link: they stay when the view changes

async function render() {
  controller.abort();
  forgetColours();
  controller = new AbortController();
  const { signal } = controller;
  showTip({}, "");
  const { values, view: addressedView } = parseAddress();
  let view = addressedView;
  try {
    const [model] = await Promise.all([
      fetchModel(values.get("model")),
      addressedView && loadView(addressedView), // at the same time
    ]);
    view ??= selectOpeningView(model, source);
    const { show } = await loadView(view);
    if (signal.aborted) return;
    document.title = `${view.title} · bertworks explorer`;
    showView(view, show, model, values, signal);
  } catch (error) {
    if (signal.aborted) return;
    drawNavigation(view ?? VIEWS[0], sharedValues, (other) => explainMissing(other, null, source));
    if (error instanceof KeyRequiredError) showKeyForm();
    else showError(view?.title ?? "bertworks explorer", error);
  }
}

// The model of a name, or the server's default. The list of models tells the views of those that
// are loaded only.
async function fetchModel(name) {
  if (!models.length) models = await source.fetchModels();
  const model =
    models.find((other) => other.name === name) ??
    models.find((other) => other.default) ??
    models[0];
  if (!model.views)
    Object.assign(model, await source.fetchModel(model.name), { default: model.default });
  return model;
}

async function loadView(view) {
  try {
    return await view.load();
  } catch (cause) {
    throw new Error("The server does not send this view. Is it still running?", { cause });
  }
}

function showView(view, show, model, values, signal) {
  const status = h("p", { class: "status", role: "status" });
  const updateAddress = () => {
    sharedValues = { model: model.default ? null : model.name, text: values.get("text") };
    history.replaceState(null, "", formatLink(view.id, Object.fromEntries(values)));
    updateLinks(sharedValues);
  };
  const ctx = createContext(view, model, models, {
    source,
    values,
    signal,
    status,
    onchange: updateAddress,
    onkeyrequired: showKeyForm,
  });
  updateAddress();
  drawNavigation(view, sharedValues, (other) => explainMissing(other, model, source));
  drawToolbar(model, models, {
    onmodel(name) {
      ctx.set({ model: name });
      render();
    },
    ontheme: render,
  });
  main.removeAttribute("aria-busy");
  const missing = explainMissing(view, model, source);
  const body = h("div", {});
  replaceContent(
    main,
    h("h1", {}, view.title),
    h("p", {}, view.about),
    missing
      ? h("p", { class: "notice" }, missing, linksToOtherModels(view, model))
      : [body, status],
  );
  if (!missing) show(body, ctx);
}

// Links to the models of this server that have a view which one lacks.
function linksToOtherModels(view, model) {
  const others = models.filter(
    (other) => other !== model && other.views && !explainMissing(view, other, source),
  );
  return others.map(({ name }) => [
    " ",
    h(
      "a",
      { href: formatLink(view.id, { ...sharedValues, model: name }) },
      `Show it with ${name}.`,
    ),
  ]);
}

function showError(title, error) {
  replaceContent(
    main,
    h("h1", {}, title),
    h("p", { class: "notice", role: "alert" }, capitalize(error.message)),
  );
}

function showKeyForm() {
  askForKey(main, source, () => {
    models = [];
    render();
  });
}

restoreTheme();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", render);
addEventListener("hashchange", async () => {
  if (location.hash === "#main") return;
  await render();
  main.focus({ preventScroll: true });
  scrollTo(0, 0);
});
render();
