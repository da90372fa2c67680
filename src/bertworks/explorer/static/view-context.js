// What a view gets: the values of its link, requests about its model, a line for its status.
import { KeyRequiredError } from "./source.js";
import { capitalize } from "./ui/format.js";
import { abortPrevious } from "./ui/timing.js";
import { explainLack } from "./views.js";

const SLOW = 250; // milliseconds until the status says that something is computed

// `signal` is aborted when the page leaves the view; `onchange()` is called when values change,
// `onkeyrequired()` when the server requires a key.
export function createContext(view, model, models, { source, values, signal, ...page }) {
  const { status, onchange, onkeyrequired } = page;
  const main = document.getElementById("main");

  const ctx = {
    model,
    models,
    source,
    view: view.id,
    status,
    get: (key, fallback = "") => values.get(key) ?? fallback,

    // A link may contain anything.
    getNumber: (key, fallback) =>
      /^\d+$/.test(values.get(key)) ? Number(values.get(key)) : fallback,

    set(changes) {
      for (const [key, value] of Object.entries(changes))
        if (value === null || value === undefined) values.delete(key);
        else values.set(key, String(value));
      onchange();
    },

    // Why the model does not have a view; null if it does.
    explainMissing: (name) => explainLack(model, name),

    request: (name, body, abortSignal = signal) =>
      source.request(name, source.data ? body : { model: model.name, ...body }, abortSignal),

    post: (path, body, abortSignal = signal) =>
      source.post(path, { model: model.name, ...body }, abortSignal),

    showStatus(text, isError = false, element = status) {
      element.textContent = isError ? capitalize(text) : text;
      element.classList.toggle("error", isError);
    },

    // A function that calls `work(signal, …)`, aborts the call before, and shows the status that
    // `work` returns, or its error.
    createUpdate(work, element = status) {
      return abortPrevious(async (callSignal, ...args) => {
        const isAborted = () => callSignal.aborted || signal.aborted;
        main.setAttribute("aria-busy", true);
        const timer = setTimeout(() => ctx.showStatus("Computing …", false, element), SLOW);
        try {
          const text = await work(AbortSignal.any([callSignal, signal]), ...args);
          if (!isAborted()) ctx.showStatus(text ?? "", false, element);
        } catch (error) {
          if (isAborted()) return;
          if (error instanceof KeyRequiredError) onkeyrequired();
          else ctx.showStatus(error.message, true, element);
        } finally {
          clearTimeout(timer);
          if (!isAborted()) main.removeAttribute("aria-busy");
        }
      });
    },
  };
  return ctx;
}
