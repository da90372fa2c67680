// A page of the server that needs a key: asks for it, and shows the page.
import { askForKey } from "./key-form.js";
import { createServerSource, KeyRequiredError } from "./source.js";
import { restoreTheme } from "./theme.js";
import { h, replaceContent } from "./ui/dom.js";
import { capitalize } from "./ui/format.js";

const source = createServerSource();
const main = document.getElementById("main");

async function render() {
  try {
    const { text, isPage } = await source.fetchText(location.pathname.split("/").at(-1));
    if (isPage) showPage(text);
    else replaceContent(main, h("pre", { tabindex: 0 }, text));
  } catch (error) {
    if (error instanceof KeyRequiredError) askForKey(main, source, render);
    else
      replaceContent(main, h("p", { class: "notice", role: "alert" }, capitalize(error.message)));
  }
}

function showPage(text) {
  const page = new DOMParser().parseFromString(text, "text/html");
  document.replaceChild(document.adoptNode(page.documentElement), document.documentElement);
}

restoreTheme();
render();
