// The list of views, and the address of one.
import { formatLink } from "./links.js";
import { h, replaceContent } from "./ui/dom.js";
import { findView, GROUPS, VIEWS } from "./views.js";

const WIDE = matchMedia("(min-width: 60.01rem)");

// The view that the page's address names, and its values.
export function parseAddress() {
  const [id, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { view: findView(id) ?? null, values: new URLSearchParams(query) };
}

// `values` go from view to view; `isMissing(view)` tells whether the model lacks a view.
export function drawNavigation(current, values, isMissing) {
  const link = (view) =>
    h(
      "a",
      {
        href: formatLink(view.id, values),
        class: isMissing(view) ? "unavailable" : null,
        "aria-current": view === current ? "page" : null,
      },
      view.title,
      isMissing(view) && h("span", { class: "visually-hidden" }, " (not available here)"),
    );
  const list = (group) =>
    h(
      "ul",
      {},
      VIEWS.filter((view) => view.group === group).map((view) => h("li", {}, link(view))),
    );
  const details = h(
    "details",
    {},
    h("summary", {}, `View: ${current.title}`),
    h(
      "div",
      { class: "links" },
      GROUPS.map((group) => [h("h2", {}, group), list(group)]),
    ),
  );
  details.open = WIDE.matches;
  replaceContent(document.getElementById("nav"), details);
}

export function updateLinks(values) {
  for (const link of document.querySelectorAll("nav a"))
    link.href = formatLink(link.hash.slice(2).split("?")[0], values);
}

WIDE.addEventListener("change", (event) => {
  const details = document.querySelector("nav details");
  if (details) details.open = event.matches;
});
