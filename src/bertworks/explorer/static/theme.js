// Light, dark, or as the system: kept in the browser's storage, which a file may not have.

const STORAGE_KEY = "bertworks-theme";
const NEXT = { auto: "dark", dark: "light", light: "auto" };
const root = document.documentElement;

export const getTheme = () => root.dataset.theme;

export function restoreTheme() {
  root.dataset.theme = readStorage() ?? "auto";
}

export function switchTheme() {
  root.dataset.theme = NEXT[getTheme()];
  writeStorage(getTheme());
}

function readStorage() {
  try {
    return localStorage.getItem(STORAGE_KEY);
  } catch {
    return null;
  }
}

function writeStorage(theme) {
  try {
    localStorage.setItem(STORAGE_KEY, theme);
  } catch {
    // The choice is lost when the page closes.
  }
}
