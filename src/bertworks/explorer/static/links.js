// Links to views, with their values.

export function formatLink(id, values) {
  const entries = Object.entries(values).filter(
    ([, value]) => value !== null && value !== undefined && value !== "",
  );
  const query = new URLSearchParams(entries).toString();
  return `#/${id}${query ? `?${query}` : ""}`;
}
