// The shell: which view, of which model; its link; keys; light and dark.
import { button, capital, clear, field, h, latest, select } from "./dom.js";
import { copyButton } from "./export.js";
import { forgetColours, showTip } from "./pictures.js";
import { file, KeyNeeded, server } from "./source.js";
import { GROUPS, OPENING, VIEWS } from "./views.js";

const embedded = document.getElementById("data");
const source = embedded ? file(JSON.parse(embedded.textContent)) : server();
const main = document.getElementById("main");
const root = document.documentElement;
let models = [];
let leave = new AbortController();
let shared = {};

const remembered = {
  // a file may have no storage
  get: (key) => {
    try {
      return localStorage.getItem(key);
    } catch {
      return null;
    }
  },
  set: (key, value) => {
    try {
      localStorage.setItem(key, value);
    } catch {
      /* forgotten when the page closes */
    }
  },
};

function parsed() {
  const [id, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { view: VIEWS.find((one) => one.id === id) ?? null, values: new URLSearchParams(query) };
}

const link = (id, values) => {
  const query = new URLSearchParams(
    Object.entries(values).filter(
      ([, value]) => value !== null && value !== undefined && value !== "",
    ),
  ).toString();
  return `#/${id}${query ? `?${query}` : ""}`;
};

function drawNav(current, model) {
  const items = GROUPS.map((group) => [
    h("h2", {}, group),
    h(
      "ul",
      {},
      VIEWS.filter((one) => one.group === group).map((one) =>
        h(
          "li",
          {},
          h(
            "a",
            {
              href: link(one.id, shared),
              class: lacking(one, model) ? "lacking" : null,
              "aria-current": one === current ? "page" : null,
            },
            one.title,
            lacking(one, model) &&
              h("span", { class: "hidden" }, " (not available with this model)"),
          ),
        ),
      ),
    ),
  ]);
  const details = h(
    "details",
    {},
    h("summary", {}, `View: ${current.title}`),
    h("div", { class: "links" }, items),
  );
  details.open = matchMedia("(min-width: 60.01rem)").matches;
  clear(document.getElementById("nav"), details);
}
matchMedia("(min-width: 60.01rem)").addEventListener("change", (event) => {
  const details = document.querySelector("nav details");
  if (details) details.open = event.matches;
});

// Why a view is not available; null if it is.
function lacking(view, model) {
  if (source.data && !view.inFile)
    return (
      "This page is a file and cannot compute. " + "This view needs a server: bertworks serve MODEL"
    );
  if (!model?.views) return null;
  const lines = (view.any ?? [view.uses]).map((name) => model.views[name] ?? null);
  return lines.includes(null) ? null : lines[0];
}

// The view that opens first: the first of those that a model has.
const opening = (model) => [...OPENING, ...VIEWS].find((one) => !lacking(one, model)) ?? VIEWS[0];

function drawBar(model, change) {
  const theme = button(
    "",
    () => {
      const next = { auto: "dark", dark: "light", light: "auto" }[root.dataset.theme];
      remembered.set("bertworks-theme", next);
      setTheme(next);
      render();
      document.getElementById("theme").focus();
    },
    {
      class: "small",
      id: "theme",
      "aria-label": `Colours: ${root.dataset.theme === "auto" ? "system" : root.dataset.theme}`,
    },
  );
  theme.append(
    h("span", { class: "long" }, "Colours: "),
    { auto: "system", dark: "dark", light: "light" }[root.dataset.theme],
  );
  const chooser =
    models.length > 1 &&
    select(
      models.map((one) => one.name),
      model.name,
      (name) => change({ model: name }),
    );
  if (chooser) chooser.id = "model";
  clear(
    document.getElementById("bar"),
    h("span", { class: "brand" }, "bertworks ", h("span", { class: "soft" }, "explorer")),
    chooser
      ? h("span", {}, h("label", { for: "model" }, "Model "), chooser)
      : h("span", { class: "soft small" }, model.name),
    copyButton("Copy link of this view", () => location.href, "Copy link"),
    theme,
  );
}

function setTheme(theme) {
  root.dataset.theme = theme;
}

async function render() {
  leave.abort();
  forgetColours();
  leave = new AbortController();
  const here = leave;
  showTip({}, "");
  const parts = parsed();
  const { values } = parts;
  let { view } = parts;
  try {
    if (!models.length) models = await source.models();
    const named =
      models.find((one) => one.name === values.get("model")) ??
      models.find((one) => one.default) ??
      models[0];
    if (!named.views)
      Object.assign(named, await source.model(named.name), { default: named.default });
    if (here.signal.aborted) return;
    view ??= opening(named);
    document.title = `${view.title} · bertworks explorer`;
    show(view, values, named, here.signal);
  } catch (error) {
    if (here.signal.aborted) return;
    drawNav(view ?? VIEWS[0], null);
    if (error instanceof KeyNeeded) askForKey();
    else
      clear(
        main,
        h("h1", {}, view?.title ?? "bertworks explorer"),
        h("p", { class: "notice", role: "alert" }, capital(error.message)),
      );
  }
}

function show(view, values, model, signal) {
  const status = h("p", { class: "status", role: "status" });
  const keep = () => {
    shared = { model: model.default ? null : model.name, text: values.get("text") };
    history.replaceState(null, "", link(view.id, Object.fromEntries(values)));
    for (const one of document.querySelectorAll("nav a"))
      one.href = link(one.hash.slice(2).split("?")[0], shared);
  };
  const ctx = {
    model,
    models,
    source,
    signal,
    status,
    view: view.id,
    get: (key, fallback = "") => values.get(key) ?? fallback,
    // A link may contain anything.
    number: (key, fallback) => (/^\d+$/.test(values.get(key)) ? Number(values.get(key)) : fallback),
    set(changes) {
      for (const [key, value] of Object.entries(changes))
        if (value === null || value === undefined) values.delete(key);
        else values.set(key, String(value));
      keep();
    },
    lacks: (name) => model.views?.[name] ?? null,
    ask: (name, body, task = signal) =>
      source.ask(name, source.data ? body : { model: model.name, ...body }, task),
    post: (path, body, task = signal) => source.post(path, { model: model.name, ...body }, task),
    say: (text, isError = false, at = status) => {
      at.textContent = isError ? capital(text) : text;
      at.classList.toggle("error", isError);
    },
    // Work that is begun again whenever something changes; it returns what to say when it is done.
    updating(work, at = status) {
      return latest(async (task, ...given) => {
        main.setAttribute("aria-busy", true);
        const slow = setTimeout(() => ctx.say("Computing …", false, at), 250);
        try {
          const said = await work(AbortSignal.any([task, signal]), ...given);
          if (!task.aborted && !signal.aborted) ctx.say(said ?? "", false, at);
        } catch (error) {
          if (task.aborted || signal.aborted) return;
          if (error instanceof KeyNeeded) askForKey();
          else ctx.say(error.message, true, at);
        } finally {
          clearTimeout(slow);
          if (!task.aborted && !signal.aborted) main.removeAttribute("aria-busy");
        }
      });
    },
  };
  keep();
  drawNav(view, model);
  drawBar(model, (changes) => {
    ctx.set(changes);
    render();
  });
  main.removeAttribute("aria-busy");
  const line = lacking(view, model);
  const body = h("div", {});
  clear(
    main,
    h("h1", {}, view.title),
    h("p", {}, view.about),
    line ? h("p", { class: "notice" }, line, others(view, model)) : [body, status],
  );
  if (!line) view.show(body, ctx);
}

// Models of this server that have what one lacks.
function others(view, model) {
  const having = models.filter((one) => one !== model && one.views && !lacking(view, one));
  return having.map((one) => [
    " ",
    h("a", { href: link(view.id, { ...shared, model: one.name }) }, `Show it with ${one.name}.`),
  ]);
}

function askForKey() {
  const input = h("input", { type: "password", autocomplete: "off", required: true });
  clear(
    main,
    h("h1", {}, "API key"),
    h(
      "p",
      {},
      "This server requires a key. The page keeps it until you close this tab, " +
        "and sends it only to this server.",
    ),
    h(
      "form",
      {
        class: "form",
        onsubmit: (event) => {
          event.preventDefault();
          source.setKey(input.value.trim());
          models = [];
          render();
        },
      },
      field("Key", input),
      h("div", {}, h("button", { class: "main" }, "Use this key")),
    ),
    source.hasKey() &&
      h("p", { class: "notice", role: "alert" }, "The server does not accept this key."),
  );
  input.focus();
}

setTheme(remembered.get("bertworks-theme") ?? "auto");
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", render);
addEventListener("hashchange", async () => {
  if (location.hash === "#main") return;
  await render();
  main.focus({ preventScroll: true });
  scrollTo(0, 0);
});
render();
